"""Run a call once more and leave no trace: on copies, with all state put back."""
