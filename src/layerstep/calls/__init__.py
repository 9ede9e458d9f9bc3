"""Calls while the program runs: of modules, of torch's operations, and of both in the backward pass."""
