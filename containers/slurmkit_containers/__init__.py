"""Container runtimes, image import cache and catalogue of slurmkit."""
