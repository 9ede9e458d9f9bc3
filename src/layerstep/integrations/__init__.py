"""Places where people work: trainers, pytest, notebooks. A library is imported only where it is used."""
