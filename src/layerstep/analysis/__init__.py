"""What tensors and modules look like: pure functions over values, free of any front end."""
