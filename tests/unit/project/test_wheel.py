"""What the wheel holds: our packages, whole, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from slurmkit_tui.feed import FeedQuestion
from slurmkit_tui.feed.recording import ReplayFeed

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "slurmkit",
    "accounting/slurmkit_accounting",
    "containers/slurmkit_containers",
    "plugins/slurmkit_plugins",
    "tui/slurmkit_tui",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """The wheel, built as pip would."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = out.glob("slurmkit_hpc-*.whl")
    return ZipFile(wheel)


@pytest.fixture(scope="module")
def names(wheel: ZipFile) -> set[str]:
    """The names of its files."""
    return set(wheel.namelist())


def test_top_level_is_ours(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        Path(package).name for package in PACKAGES
    }


def test_every_file_of_the_packages_is_in_it(names: set[str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    inside = {
        str(Path(name).relative_to(Path(p).parent))
        for p in PACKAGES
        for name in tracked
        if name.startswith(f"{p}/")
    }
    assert inside
    assert inside <= names


def test_the_sample_of_the_tui_can_be_replayed_from_it(wheel: ZipFile, tmp_path: Path) -> None:
    sample = Path(wheel.extract("slurmkit_tui/sample.rec", tmp_path))
    feed = ReplayFeed(sample)
    assert (feed.name or "lab", feed.me) == ("lab", "vogel")
    assert feed.fetch(FeedQuestion("queue")).value.rows
