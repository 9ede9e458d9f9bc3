"""Memory while a model trains: what is alive, whose it is, and what autograd holds."""
