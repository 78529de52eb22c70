"""Read the rows of a dump with slurm2sql; runs in a virtual environment that has it."""

import json
import sqlite3
import sys
import time
from pathlib import Path

import slurm2sql

source, names, folder = Path(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3])
columns = [c for c in [*slurm2sql.COLUMNS, *slurm2sql.COLUMNS_EXTRA] if not c.startswith("_")]
same = {
    "ReqMem": "1G",
    "Elapsed": "00:10:00",
    "Timelimit": "1-00:00:00",
    "NCPUS": "8",
    "NNodes": "1",
}


def line(text: str) -> str:
    """The row as slurm2sql asks sacct for it; what our dump lacks is as good as nothing."""
    row = same | dict(zip(names, text.split("|"), strict=True))
    for name in ("Submit", "Eligible", "Start", "End"):
        row[name] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(int(row[name])))
    return ";|;".join(row.get(name, "") for name in columns)


given = folder / "peer.txt"
with source.open() as rows, given.open("w") as out:
    print(";|;".join(columns), file=out)
    for one in rows:
        print(line(one.rstrip("\n")), file=out)
began = time.process_time()
with sqlite3.connect(folder / "peer.db") as db, given.open() as lines:
    slurm2sql.slurm2sql(db, raw_sacct=lines)
    (count,) = db.execute("SELECT count(*) FROM slurm").fetchone()
print(json.dumps({"rows": count, "seconds": time.process_time() - began}))
