"""Checks of slurmkit's installation and of a cluster's settings.

>>> from slurmkit.doctor.checks import run_checks
>>> [found for found in run_checks(Cluster().slurm) if found.severity == "error"]
"""
