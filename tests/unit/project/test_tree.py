"""What is tracked: all that a clone needs, and nothing that does not belong."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def git(*args: str) -> list[str]:
    done = subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_nothing_the_image_is_built_from_is_ignored() -> None:
    """A clone must hold every file that the Dockerfile copies."""
    ignored = git("ls-files", "--others", "--ignored", "--exclude-standard", "--", "docker")
    dropped_in = re.compile(r"docker/(ca/[^/]+\.crt|packages/[^/]+\.deb)|.*\.pyc")
    assert [path for path in ignored if not dropped_in.fullmatch(path)] == []
    text = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    for source in (word for words in copied for word in words if not word.startswith("--")):
        assert source == "constraints.txt" or git("ls-files", f"docker/{source}"), source


def test_no_source_file_is_over_800_lines() -> None:
    long = [
        path
        for path in git("ls-files", "*.py", "docker")
        if (ROOT / path).read_bytes().count(b"\n") > 800
    ]
    assert long == []
