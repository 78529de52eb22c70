"""Run Slurm's commands on a login node over SSH."""
