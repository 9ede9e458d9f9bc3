"""What layerstep costs: `python -m benchmarks [--quick] [--write]`. Nothing here is a test."""
