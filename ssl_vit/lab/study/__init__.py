"""Read a study's axes and runs from a file, plan the tasks, and start each task."""
