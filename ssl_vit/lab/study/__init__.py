"""Studies: axes and runs in a file, the tasks that they make, and how these are started."""
