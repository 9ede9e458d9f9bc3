"""What is done by itself while a program trains: hooks with a trigger and actions, alerts, recovery."""
