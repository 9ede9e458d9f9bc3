"""One file a command. Each registers itself; nothing lists them."""
