"""List and rank the runs of a folder, write a page about them, and remove their checkpoints."""
