"""Places where people work: trainers, pytest, notebooks. Each file imports its library only when it is used."""
