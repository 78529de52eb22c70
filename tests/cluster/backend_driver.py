"""Runs on the login node: one call to a backend, asked for and answered as JSON.

python backend_driver.py '{"backend": "commands", "call": "hold", "job_id": "12"}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from slurmkit.backends import pyslurm
from slurmkit.backends.beside import Beside
from slurmkit.cluster import Cluster
from slurmkit.errors import SlurmkitError
from slurmkit.planner import Submission
from slurmkit.plugins import Backend, load
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.slurm import LocalSlurm, Slurm


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        pyslurm.SENT.clear()
        try:
            backend = made(asked.pop("backend"))
            answer: Any = {"value": call(backend, asked.pop("call"), asked)}
        except SlurmkitError as error:
            answer = told(error)
        print(json.dumps(answer | {"ways": [*pyslurm.SENT]}), flush=True)


def made(name: str) -> Backend:
    if name == "commands over SSH":
        return Cluster("lab").backend
    make: Callable[[Slurm], Backend] = load("backends", name)  # type: ignore[assignment]
    return make(LocalSlurm())


def call(backend: Backend, name: str, given: dict[str, Any]) -> object:
    if name == "submit":
        made = msgspec.convert(given.pop("submission"), Submission)
        return backend.submit(made, msgspec.convert(given, Beside))
    if name == "queue":
        queue = backend.queue(msgspec.convert(given, QueueFilter))
        return msgspec.to_builtins(queue.rows)
    if name == "cancel":
        failed = backend.cancel(given.pop("job_ids"), **given)
        return {job_id: told(error) for job_id, error in failed.items()}
    return getattr(backend, name)(**given)


def told(error: SlurmkitError) -> dict[str, str]:
    return {"error": type(error).__name__, "words": str(error)}


if __name__ == "__main__":
    main()
