"""Views on a screen, as text, as JSON. Each view is rendered once, here."""
