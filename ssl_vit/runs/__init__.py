"""Manage run folders: names, lock, metrics, console and trackers. No torch at import."""
