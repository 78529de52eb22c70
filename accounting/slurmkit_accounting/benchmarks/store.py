"""Store benchmark results in the ledger: in one opened here, or through its service."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, insert, select

from slurmkit.errors import BadInput, NotAllowed
from slurmkit_accounting.benchmarks.results import UNITS, Measurement
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.benchmarks import benchmark_results
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.remote.served import AnyLedger, changes_remote
from slurmkit_accounting.reports.question import CLOCKS_AHEAD, EVERYTHING, Scope

_BATCH = 200  # measurements in one query of the service
_KEY = ("job_id", "nodes", "gpu", "benchmark")
_TABLE = benchmark_results.c


class StoredCount(msgspec.Struct, frozen=True):
    """How many measurements were stored now, and how many the ledger had before."""

    stored: int
    known: int


@changes_remote
def store_benchmarks(
    ledger: Ledger,
    cluster: str,
    run: str,
    results: tuple[Measurement, ...],
    *,
    scope: Scope = EVERYTHING,
    uid: int = -1,
) -> StoredCount:
    """Store measurements, each once.

    Args:
        ledger: a ledger open for writing.
        cluster: name of the cluster that was measured.
        run: name of the benchmark run.
        results: at most 200 through the service.
        scope: what the asker may see; only those who may see everything may store.
        uid: who stores; the service sets it to the uid of whoever asks.

    Raises:
        NotAllowed: when the asker is no operator.
        BadInput: for an unknown cluster, and for a measurement that cannot be right.
        LedgerError: when the ledger cannot be written.
    """
    if not scope.is_everything:
        raise NotAllowed(
            "only Slurm's operators store benchmark results in the site's ledger; the results stay"
            f" in the folder of the run, and an operator stores them: slurmkit benchmark collect"
            f" FOLDER, or look at them: slurmkit benchmark show {run}"
        )
    now = int(time.time())
    for each in results:
        _check(each, now)
    who = _user_name(os.getuid() if uid < 0 else uid)
    with ledger.transaction() as connection:
        number = connection.scalar(select(clusters.c.id).where(clusters.c.name == cluster))
        if number is None:
            raise BadInput(
                f"the ledger has no cluster {cluster!r}; read its jobs first: slurmkit ledger"
                " ingest, or name another ledger with --db"
            )
        known = _known_keys(connection, number, run)
        fresh = {key: each for each in results if (key := _key(each)) not in known}
        rows = [
            msgspec.structs.asdict(each)
            | {"versions": msgspec.json.encode(each.versions, order="deterministic").decode()}
            | {"cluster_id": number, "run": run, "user": who, "stored": now}
            for each in fresh.values()
        ]
        if rows:
            connection.execute(insert(benchmark_results), rows)
    return StoredCount(len(rows), len(results) - len(rows))


def store_all(
    ledger: AnyLedger, cluster: str, run: str, results: Sequence[Measurement]
) -> StoredCount:
    """Store measurements in as many queries as they need. Raises as `store_benchmarks`."""
    stored = known = 0
    for start in range(0, len(results), _BATCH):
        count = store_benchmarks(ledger, cluster, run, tuple(results[start : start + _BATCH]))
        stored, known = stored + count.stored, known + count.known
    return StoredCount(stored, known)


def _check(each: Measurement, now: int) -> None:
    if UNITS.get(each.benchmark) != each.unit:
        raise BadInput(
            f"there is no benchmark {each.benchmark!r} in {each.unit!r}; there are:"
            f" {', '.join(UNITS)}"
        )
    if each.at > now + CLOCKS_AHEAD:
        raise BadInput(f"a measurement of {each.nodes} is of tomorrow; set the node's clock right")


def _known_keys(connection: Connection, cluster: int, run: str) -> set[tuple[str, ...]]:
    query = select(*(_TABLE[name] for name in _KEY)).where(
        _TABLE.cluster_id == cluster, _TABLE.run == run
    )
    return {tuple(row) for row in connection.execute(query)}


def _key(each: Measurement) -> tuple[str, ...]:
    return tuple(getattr(each, name) for name in _KEY)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
