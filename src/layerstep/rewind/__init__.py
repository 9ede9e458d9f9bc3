"""Going back in a forward: it begins again from a snapshot and stops at an earlier place."""
