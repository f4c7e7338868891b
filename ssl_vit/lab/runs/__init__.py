"""List and rank the runs of a folder."""
