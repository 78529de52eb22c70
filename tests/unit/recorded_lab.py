"""The Docker cluster as values, read from what its Slurm really printed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from slurmkit.capabilities.model import Association, Capabilities, Qos, Standing
from slurmkit.capabilities.read import parse_capabilities

RECORDED = Path(__file__).parents[1] / "recorded"
RELEASES = ("22.05", "24.11", "26.05")


@cache
def capabilities(release: str = "24.11") -> Capabilities:
    folder = RECORDED / release
    said: dict[str, str | None] = {
        "config": (folder / "scontrol-config.txt").read_text("utf-8"),
        "nodes": (folder / "scontrol-nodes.txt").read_text("utf-8"),
        "partitions": (folder / "scontrol-partitions.txt").read_text("utf-8"),
        "licenses": (folder / "scontrol-licenses.txt").read_text("utf-8"),
        "mpi": (folder / "srun-mpi.txt").read_text("utf-8"),
        "srun": (folder / "srun-help.txt").read_text("utf-8"),
    }
    return parse_capabilities(said, 1_700_000_000)


def standing() -> Standing:
    """Alice in vision, without limits."""
    accounts = (Association(account="root"), Association(account="vision", parent="root"))
    alice = Association(
        account="vision", user="alice", default_qos="normal", qos=("normal", "high", "scavenger")
    )
    return Standing(
        taken=1_700_000_000,
        user="alice",
        groups=("people", "vision"),
        associations=(*accounts, alice),
        default_account="vision",
        qos=(Qos(name="normal"), Qos(name="high"), Qos(name="scavenger")),
    )
