"""Slurm's text forms: durations, memory, TRES, ids and node lists; no I/O."""
