"""Watchpoints: stop at the op and the line that write a tensor."""
