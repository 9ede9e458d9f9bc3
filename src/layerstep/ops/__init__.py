"""Stop at operations: step from one to the next, points at them, and what a stop there shows."""
