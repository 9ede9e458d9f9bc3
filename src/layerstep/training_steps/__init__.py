"""Training steps: when an optimizer steps, and where one step ends and the next begins."""
