"""Points and steps at lines of the program's source: places, statements, tracers and steps."""
