"""Lockstep: two models, programs or recordings on one input, and the first layer where they differ."""
