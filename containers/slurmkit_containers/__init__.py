"""Containers for slurmkit: runtimes, a cache of imported images, and a catalogue."""
