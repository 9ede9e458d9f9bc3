"""The debugger itself: what happens in the run, when to stop, and the pause. No screen, no prompt."""
