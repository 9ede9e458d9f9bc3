"""Seven ordinary training programs. Each learns; faults are planted by changing their text."""
