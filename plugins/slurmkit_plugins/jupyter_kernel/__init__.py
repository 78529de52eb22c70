"""Kernels of Jupyter as Slurm jobs: one notebook's kernel is a job."""
