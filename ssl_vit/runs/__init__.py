"""The run folder: names, lock, metrics; console and trackers. No torch at import."""
