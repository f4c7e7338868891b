"""Recipes: the schema, how options and files become a recipe, what values may be, where first
weights come from. No torch."""
