"""List and rank the runs of a folder, write a page about the runs, and remove checkpoints."""
