"""Where the time goes: by module, by operation, by line; FLOPs, advice, and comparisons of runs."""
