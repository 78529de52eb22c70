"""Slurm's job states: the short code squeue knows each by, and what kind of state it is."""

from __future__ import annotations

from typing import Literal

Kind = Literal["running", "waiting", "moving", "halted", "done", "bad"]

# squeue(1), JOB STATE CODES.
CODES = {
    "BOOT_FAIL": "BF",
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "COMPLETING": "CG",
    "CONFIGURING": "CF",
    "DEADLINE": "DL",
    "FAILED": "F",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PENDING": "PD",
    "PREEMPTED": "PR",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "RESIZING": "RS",
    "RESV_DEL_HOLD": "RD",
    "REVOKED": "RV",
    "RUNNING": "R",
    "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO",
    "STOPPED": "ST",
    "SUSPENDED": "S",
    "TIMEOUT": "TO",
}
_KINDS: dict[str, Kind] = {
    "RUNNING": "running",
    "PENDING": "waiting",
    "COMPLETING": "moving",
    "CONFIGURING": "moving",
    "EXPEDITING": "moving",
    "RESIZING": "moving",
    "SIGNALING": "moving",
    "STAGE_OUT": "moving",
    "SUSPENDED": "halted",
    "STOPPED": "halted",
    "COMPLETED": "done",
}


def code(state: str) -> str:
    """Slurm's one to three letters for a state; a state we do not know is itself."""
    return CODES.get(state, state)


def kind(state: str) -> Kind:
    """What kind of state it is; one we do not know counts as a failure, to be seen."""
    return _KINDS.get(state, "bad")
