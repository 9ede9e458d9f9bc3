"""The process that is debugged: who gets Ctrl-C, worker processes, forked children, the frames of threads."""
