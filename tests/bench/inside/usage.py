"""A month's usage of the same runs, out of the ledger and by sreport.

The ledger in the folder has the end of the month; the rest is read from sacct's text, which is
quicker than live, steps left out.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from slurmkit_accounting import read
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ingest.file import SacctFile, ingest_file
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.sacct.query import SACCT_FIELDS, split_into_days
from slurmkit_accounting.usage import query

from slurmkit.slurm.commands import environment_for

RUNS, CLUSTER = int(sys.argv[1]), sys.argv[2]
BEGIN, THERE, END = map(int, sys.argv[3:6])
URL = f"sqlite:///{sys.argv[6]}/ledger.db"
EDGES = [datetime.fromtimestamp(edge, UTC).strftime("%Y-%m-%d") for edge in (BEGIN, END)]
MARK = "\x1f"
SREPORT = ["sreport", "-nP", "-t", "Seconds"]
BY_USER = ["cluster", "AccountUtilizationByUser", f"start={EDGES[0]}", f"end={EDGES[1]}"]


def fill() -> Iterator[int]:
    """What the ledger lacks of the month, a day at a time."""
    flags = ["-a", "-X", "-D", "-P", "--noheader", "--noconvert", f"--delimiter={MARK}"]
    words = ["sacct", *flags, f"--format={','.join(SACCT_FIELDS)}"]
    with open_for_writing(URL) as ledger:
        for day in split_into_days(BEGIN, THERE):
            argv = [*words, "-S", f"uts{day.begin}", "-E", f"uts{day.end}"]
            with subprocess.Popen(
                argv, stdout=subprocess.PIPE, env=environment_for(argv, os.environ)
            ) as sacct:
                file = SacctFile(
                    "sacct", sacct.stdout, CLUSTER, SACCT_FIELDS, MARK, find_zone("UTC")
                )
                yield ingest_file(ledger, file).entered.new


def timed(call: Callable[[], object]) -> list[float]:
    """Seconds of each of some calls, after one that does not count."""
    call()
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds


def command(*argv: str) -> str:
    """What a command prints."""
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def gpu_seconds_of_sreport() -> int:
    """The tree's root is everything."""
    said = command(*SREPORT, "-T", "gres/gpu", *BY_USER, "Format=Account,Login,TresName,Used")
    rows = [line.split("|") for line in said.splitlines()]
    return sum(int(row[3]) for row in rows if row[:3] == ["root", "", "gres/gpu"])


added = sum(fill())
with read.ledger(URL) as books:

    def asked() -> dict:
        with books.transaction() as connection:
            return query.query_usage(connection, query.UsageQuery((BEGIN, END), END))

    def report() -> object:
        return read.usage(books, *EDGES, by="account,user", timezone="UTC")

    cells = asked()
    at = query.SUM_INDEX["gpu_seconds"]
    found = {
        "keys": len(cells),
        "gpu_seconds": sum(sums[at] for sums in cells.values()),
        "query": timed(asked),
        "report": timed(report),
    }
ours = ["--from", EDGES[0], "--to", EDGES[1], "--timezone", "UTC", "--by", "account,user"]
words = [sys.executable, "-m", "slurmkit", "report", "usage", *ours, "--db", URL]
found |= {
    "command": timed(lambda: command(*words)),
    "sreport": timed(lambda: command(*SREPORT, *BY_USER)),
    "sreport_gpu": timed(lambda: command(*SREPORT, "-T", "gres/gpu", *BY_USER)),
    "sreport_gpu_seconds": gpu_seconds_of_sreport(),
    "added": added,
}
print(json.dumps(found))
