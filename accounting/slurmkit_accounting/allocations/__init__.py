"""Allocations: what was granted, what is left of it, and the limits in Slurm that enforce it."""
