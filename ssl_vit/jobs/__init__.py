"""One run from its command line to its folder: command line, setup, training, evaluation,
finish."""
