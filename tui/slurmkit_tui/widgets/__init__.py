"""Widgets that know nothing of Slurm's commands."""
