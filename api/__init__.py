"""The HTTP edge: it knows HTTP, asks the actors, and nothing imports it but the program."""
