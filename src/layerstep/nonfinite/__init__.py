"""The search for a NaN or Inf: notice it cheaply, run the call again, and stop where it was born."""
