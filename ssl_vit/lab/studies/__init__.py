"""Studies: many runs that depend on one another, as local processes or SLURM jobs."""
