"""Points as people set them: from text to a point, where it is in words, and why it is silent."""
