"""What a typed line or a condition does to the run: found out, and put back where it was not meant."""
