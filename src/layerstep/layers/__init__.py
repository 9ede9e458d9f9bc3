"""Layers: what comes out of them unit by unit, and what their weights look like."""
