"""Studies: a small file of arms, seeds and parts becomes runs that depend on one another, each its own process or SLURM job."""
