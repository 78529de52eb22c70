"""The Docker cluster as values, read from what its Slurm really printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from slurmkit.state.capabilities import parse_capabilities
from slurmkit.state.model import Association, Capabilities, Qos, Standing
from slurmkit.testing import FakeSlurm

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


def slurm(
    release: str = "24.11", **answers: Callable[[Sequence[str], str | None], str]
) -> FakeSlurm:
    """A border that answers as the Docker cluster did, and to sbatch with a start or an id."""
    folder = RECORDED / release
    files = {
        ("show", "config"): "scontrol-config.txt",
        ("show", "node"): "scontrol-nodes.txt",
        ("show", "partition"): "scontrol-partitions.txt",
        ("show", "license"): "scontrol-licenses.txt",
        ("show", "assoc_mgr"): "assoc_mgr.txt",
        ("show", "topology"): "scontrol-topology.txt",
    }

    def scontrol(argv: Sequence[str], _: str | None) -> str:
        words = tuple(word for word in argv[1:] if not word.startswith("-"))
        name = files.get(words[:2])
        return (folder / name).read_text("utf-8") if name else ""

    def srun(argv: Sequence[str], _: str | None) -> str:
        name = "srun-mpi.txt" if "--mpi=list" in argv else "srun-help.txt"
        return (folder / name).read_text("utf-8")

    def sbatch(argv: Sequence[str], _: str | None) -> str:
        if "--test-only" in argv:
            return "sbatch: Job 7 to start at 1700000100 using 1 processors on nodes c1"
        return "7\n"

    known = {"scontrol": scontrol, "srun": srun, "sbatch": sbatch, "sacctmgr": lambda *_: ""}
    return FakeSlurm({**known, **answers})
