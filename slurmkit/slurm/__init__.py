"""Run Slurm's commands, on this machine or over SSH."""
