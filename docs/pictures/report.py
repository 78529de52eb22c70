"""Make the pictures of a report: `.venv/bin/python -P docs/pictures/report.py [FOLDER]`.

A month of an invented cluster, the same each time; needs Chromium.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from slurmkit_accounting import read
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.render import render_report

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from report_books import BEGIN, DAY, write_books  # noqa: E402  the path is set above
from usage_oracle import Job  # noqa: E402  see above

PEOPLE = ("alice", "bob", "chandra", "dilek", "emil", "fatou", "goran", "hana", "ines", "jun")
PARTITIONS = {"a100": "gpu", "h100": "gpu-large", "a100_1g.5gb": "interactive"}
STATES = ("COMPLETED",) * 14 + ("FAILED", "TIMEOUT", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED")
PRICES = """
[gpu.a100]
watts = 400
[[gpu.a100.prices]]
since = 2026-01-01
currency = "EUR"
on_premises = 0.85
cloud = 3.20
[gpu.h100]
watts = 700
[[gpu.h100.prices]]
since = 2026-01-01
currency = "EUR"
on_premises = 1.90
cloud = 6.10
[gpu."a100_1g.5gb"]
part_of = "a100"
weight = 0.142857
"""
BUDGETS = """
[[budget]]
pi = "vogel"
gpu_hours = 4000
from = 2026-10-15
to = 2026-12-15
"""
WIDTHS = {"phone": (360, 3000), "tablet": (800, 2500), "desktop": (1400, 2000)}


def jobs() -> list[Job]:
    """A month of work: fewer on weekends, somebody large, somebody who mostly fails."""
    dice = random.Random(7)  # noqa: S311  the same each time
    made = []
    for day in range(30):
        busy = 0.45 if day % 7 in {0, 6} else 1.0 + 0.25 * math.sin(day / 4)
        begins = [BEGIN + day * DAY + dice.randrange(DAY) for _ in range(int(60 * busy))]
        made += [_job(dice, begin) for begin in begins]
    return made


def _job(dice: random.Random, start: int) -> Job:
    user = PEOPLE[min(int(dice.expovariate(0.45)), len(PEOPLE) - 1)]
    kind = dice.choices(list(PARTITIONS), (6, 3, 2))[0]
    hours = min(dice.lognormvariate(1.2, 1.0), 48)
    state = dice.choice(STATES) if user != "emil" else dice.choice(("FAILED", "COMPLETED"))
    gpus = dice.choice((1, 1, 2, 4, 8)) if kind != "a100_1g.5gb" else 1
    length = int(hours * 3600)
    wait = int(dice.expovariate(1 / (5400 if kind == "h100" else 1200)))
    busy = dice.randrange(150, 950)
    is_measured = kind != "a100_1g.5gb" and user != "fatou" and dice.random() < 0.85
    return Job(
        start - wait, start, start + length, user=user, state=state, gpus={kind: gpus},
        cpus=8 * gpus, mem=65536, cpu_used_ms=int(length * 8000 * gpus * dice.uniform(0.2, 0.9)),
        other={
            "account": dice.choice(("vision", "genomics")),
            "partition": PARTITIONS[kind],
            "gpu_used_permille": busy if is_measured else None,
            "mem_peak_mib": dice.randrange(4000, 60000),
        },
    )  # fmt: skip


def page(folder: Path) -> Path:
    """Write the report."""
    (folder / "config.toml").write_text(PRICES, "utf-8")
    (folder / "budgets.toml").write_text(BUDGETS, "utf-8")
    with open_for_writing(f"sqlite:///{folder}/ledger.db") as ledger:
        write_books(ledger, jobs())
        month = {"begin": "2026-11-01", "end": "2026-12-01", "timezone": "Europe/Berlin"}
        report = read.usage(ledger, by="user,gpu-type", panels=True, now=BEGIN + 40 * DAY, **month)
    path = folder / "report.html"
    path.write_bytes(render_report(report, "html"))
    return path


def main() -> None:
    """Three widths, and the printed pages."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("report.py: no Chromium; apt-get install chromium")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    with tempfile.TemporaryDirectory() as name:
        os.environ["SLURMKIT_CONFIG"] = f"{name}/config.toml"
        source = page(Path(name))
        plain = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"]
        wanted = [
            [f"--window-size={width},{height}", f"--screenshot={target}/report-{size}.png"]
            for size, (width, height) in WIDTHS.items()
        ]
        for options in (*wanted, [f"--print-to-pdf={target}/report.pdf"]):
            subprocess.run([*plain, *options, f"file://{source}"], check=True)


if __name__ == "__main__":
    main()
