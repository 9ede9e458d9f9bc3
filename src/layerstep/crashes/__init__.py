"""Stop where a module raises, and explain the exception."""
