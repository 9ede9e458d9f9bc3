"""Whom the debugger talks to: a terminal, a pipe. They post lines and show views; they decide nothing."""
