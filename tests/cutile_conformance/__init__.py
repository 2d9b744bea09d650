"""What cuda.tile's documentation promises, as cases that run interpreted and compiled alike."""
