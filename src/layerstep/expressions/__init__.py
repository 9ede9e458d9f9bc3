"""Python at the prompt and in conditions: how it is read, the names it can use, and what is kept for it."""
