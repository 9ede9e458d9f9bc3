"""The process that is debugged: Ctrl-C, worker processes, forked children, the frames of threads."""
