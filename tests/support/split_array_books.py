"""A month of runs of arrays that Slurm holds as several."""

from __future__ import annotations

NOVEMBER = ["--from", "2026-11-01", "--to", "2026-12-01", "--timezone", "UTC"]
