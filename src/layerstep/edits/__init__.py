"""Changing the run on purpose: values of calls, weights and gradients, and taking the changes back."""
