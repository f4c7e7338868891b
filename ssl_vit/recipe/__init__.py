"""Recipes: the keys and what they may be, how words and files become a recipe, what the identity
of a run is, where initial weights come from. No torch."""
