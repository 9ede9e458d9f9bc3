"""Precision: values near the limits of their dtype, and operations that lose digits."""
