"""Attention: the weights that a module computes, head by head."""
