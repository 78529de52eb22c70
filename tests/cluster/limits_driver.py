"""Runs on the login node, in slurmkit's own Python: many command lines, each as if typed.

Standard input: a list of cases, each a list of steps; standard output: what came of each. One
process instead of hundreds keeps the test of all limits short.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from multiprocessing import get_context
from typing import Any

from slurmkit.cli.main import cli, run_to_exit_code


def typed(*argv: str) -> tuple[int, str, str]:
    """Run one command line of slurmkit: exit code, standard output and error."""
    written = io.BytesIO()
    out, err = io.TextIOWrapper(written), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_to_exit_code(cli, list(argv))
    out.flush()
    return code, written.getvalue().decode(), err.getvalue()


def words(asks: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in asks.items()]


def send(asks: dict[str, str], command: list[str], *flags: str) -> str:
    code, out, err = typed("submit", "--parsable", *flags, *words(asks), "--", *command)
    return out.strip() if code == 0 else err.strip()


def attempt(case: dict[str, Any]) -> dict[str, Any]:
    """Plan a case, force it in, and send its fix."""
    asks: dict[str, str] = case["asks"]
    code, out, err = typed("plan", "--json", *words(asks), "--", "true")
    made: dict[str, Any] = (
        json.loads(out)["rows"][0]
        if out
        else {"errors": [], "warnings": [], "notes": [], "said": err}
    )
    said = send(asks, ["sleep", "120"], "--force")
    found = [f for f in made[case["level"]] if f["code"] == case["code"]]
    fix = found[0]["fix"] if found else {}
    better = {name: value for name, value in {**asks, **fix}.items() if value}
    fixed = send(better, ["sleep", "1"]) if fix else "no fix"
    return {"code": code, "plan": made, "said": said, "fix": fix, "fixed": fixed}


if __name__ == "__main__":
    with get_context("fork").Pool(4) as pool:
        json.dump(pool.map(attempt, json.load(sys.stdin), chunksize=1), sys.stdout)
