"""Ink of figures, whose ground is the page's. No torch here."""

# Of text and lines: a contrast of 4.2 with white and with the #14171c of dark pages alike
INK = "#7b7b7b"
