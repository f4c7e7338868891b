"""Many runs: studies, their reports, planning, the table of runs. It reads run folders."""
