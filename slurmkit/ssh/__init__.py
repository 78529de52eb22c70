"""Clusters reached over SSH: one kept connection, and Slurm's commands run on the login node."""
