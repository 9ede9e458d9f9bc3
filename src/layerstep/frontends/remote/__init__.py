"""The wire: a debugged process listens on a socket of its user, and clients in other processes talk to it."""
