"""The version of slurmkit; the distribution takes it from here."""

from __future__ import annotations

__version__ = "0.2.0"
