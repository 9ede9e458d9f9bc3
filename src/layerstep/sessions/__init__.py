"""Sessions for programs: one object that watches a training and reports at its end."""
