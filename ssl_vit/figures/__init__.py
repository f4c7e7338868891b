"""What a model has learned, as pictures."""
