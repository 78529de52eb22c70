"""The spawner for JupyterHub: each person's server is a Slurm job of that person.

JupyterHub finds it by the name `slurmkit` (entry point `jupyterhub.spawners`). See
docs/jupyterhub.md.
"""
