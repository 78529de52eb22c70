"""Bash's completion of a command line."""

from __future__ import annotations

import os
import subprocess
import sys


def tab(line: str, code: str = "from slurmkit.cli.main import main; main()") -> list[str]:
    """What bash is offered for a line, its last word being typed."""
    words = line.split(" ")
    env = {
        **os.environ,
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_SLURMKIT_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return [offered.partition(",")[2] for offered in done.stdout.split()]
