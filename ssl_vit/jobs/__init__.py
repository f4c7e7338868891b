"""Take a run from the command line to a finished folder.

The modules cover the command line, setup, training, evaluation and the end of a run.
"""
