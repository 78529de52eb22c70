"""kill -9 of the service, fifty times: the books verify, and are those of an undisturbed run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from databases import KINDS, emptied

pytestmark = pytest.mark.sql

HERE = Path(__file__).parents[3] / "support"
KILLS = 50


def run(ledger: str, begin: int, kills: int, seed: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "kill_driver.py"), ledger, str(begin), str(kills), str(seed)],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(HERE), "TZ": "UTC"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [7])
def test_killed_fifty_times(tmp_path: Path, kind: str, seed: int) -> None:
    def new(name: str) -> str:
        return f"sqlite:///{tmp_path}/{name}.db" if kind == "sqlite" else emptied()

    begin = int(time.time()) - 41 * 3600
    calm = run(new("calm"), begin, 0, 0)
    killed = run(new("killed"), begin, KILLS, seed)
    counts = killed["killed"]
    assert sum(counts.values()) == KILLS
    assert counts["parse"] + counts["transaction"] + counts["commit"] >= 40
    assert counts["checkpoint"] > 0
    assert killed["wrong"] == calm["wrong"] == []
    assert killed["runs"] == calm["runs"] > 240
    assert calm["usage"]
    assert killed["checksum"] == calm["checksum"]
