"""Exceptions of torch explained: what a module got, what it has, and the likely fix."""
