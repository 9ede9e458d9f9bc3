"""A small transformer with a planted fault, and the guided first session that finds it."""
