"""Jupyter in a job: what starts it, where it says how to reach it, and how it is found again."""
