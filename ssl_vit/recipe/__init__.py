"""Recipes: keys and allowed values, how words and files become a checked recipe, what identifies a
run, and where initial weights come from.

No module in this package imports torch at import time.
"""
