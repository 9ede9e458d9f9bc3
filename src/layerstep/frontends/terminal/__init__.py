"""The prompt on a real terminal, by prompt_toolkit."""
