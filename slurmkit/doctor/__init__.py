"""What of slurmkit and of a cluster's settings is missing or unwise.

>>> from slurmkit.doctor.checks import examine
>>> [found for found in examine(Cluster().slurm) if found.severity == "error"]
"""
