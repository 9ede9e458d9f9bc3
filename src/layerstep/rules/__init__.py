"""One file a rule: a fault of training, what shows it, why it matters, how to fix it."""
