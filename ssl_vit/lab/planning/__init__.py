"""Time and price before the run, counted or measured."""
