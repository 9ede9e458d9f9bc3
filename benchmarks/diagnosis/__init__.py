"""The judge of the doctor: planted faults, healthy runs, and how often each is judged rightly."""
