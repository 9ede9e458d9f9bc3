"""Views as files. One file each, registered by `@export`, found by suffix."""
