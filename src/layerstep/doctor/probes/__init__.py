"""One file a probe: an experiment on copies of the model and of its last training batch."""
