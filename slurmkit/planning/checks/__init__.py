"""Checks of a planned job against the limits of the cluster."""
