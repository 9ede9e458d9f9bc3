"""History: checkpoints of the whole process to go back to, and snapshots of the state alone."""
