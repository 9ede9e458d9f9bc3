"""Gradients: their size, how they flow over the training steps, why one is missing."""
