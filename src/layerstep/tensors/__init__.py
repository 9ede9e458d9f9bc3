"""Tensors of every kind: what they hold, how they differ, how they read as text. No session, no hooks."""
