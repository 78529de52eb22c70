"""Slurm's job states: their short codes, and their kinds."""

from __future__ import annotations

from typing import Literal

StateKind = Literal["running", "waiting", "moving", "halted", "done", "bad"]

# squeue(1), JOB STATE CODES.
STATE_CODES = {
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
_KINDS: dict[str, StateKind] = {
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
    "CANCELLED": "done",  # mostly by its own user, who need not be warned of it
}


def state_code(state: str) -> str:
    """Return squeue's short code of a state; an unknown state is returned as it is."""
    return STATE_CODES.get(state, state)


def state_kind(state: str) -> StateKind:
    """Return the kind of a state; an unknown one counts as `bad`, so that users notice it."""
    return _KINDS.get(state, "bad")
