"""Nested containers as torch itself walks them, with the classes that a program has registered for it."""

from __future__ import annotations

from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

__all__ = ["tree_flatten", "tree_leaves", "tree_map", "tree_unflatten"]
