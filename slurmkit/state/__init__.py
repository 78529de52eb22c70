"""What the cluster is and does now, read from Slurm's commands."""
