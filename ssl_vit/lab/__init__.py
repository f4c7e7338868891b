"""Handle many runs: studies, reports, planning and lists of runs. The package reads run folders."""
