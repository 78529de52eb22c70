"""Plugins: known by name without an import, loaded one by one, broken ones named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.config import plugins
from slurmkit.errors import BadInput, BrokenPlugin
from slurmkit.planning.launchers.base import make_launcher
from slurmkit.planning.launchers.srun import BatchShell, Srun

ENTRIES = """
[slurmkit.launchers]
horovod = demo_launchers:Torchrun
srun = demo_launchers:Mine
half = demo_launchers:Half
broken = demo_launchers.nowhere:X
stuck = demo_launchers:Stuck
quits = demo_quits:X
[slurmkit.nonsense]
x = demo_launchers:Torchrun
[slurmkit.commands]
lost = demo_launchers.nowhere:X
[other.group]
y = demo_launchers:Torchrun
"""
CODE = """
class Torchrun:
    def settle(self, spec): return spec
    def needs(self, step): return ()
    def lines(self, step): return ("torchrun",)
class Mine(Torchrun): pass
class Stuck(Torchrun):
    def __init__(self): raise KeyError("x")
class Half:
    def lines(self, step): return ()
"""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Install a distribution of a site, as pip would."""
    info = tmp_path / "lib" / "site_plugins-2.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-plugins\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (info.parent / "demo_launchers.py").write_text(CODE)
    (info.parent / "demo_quits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(info.parent))
    plugins.registered_plugins.cache_clear()
    yield info.parent
    plugins.registered_plugins.cache_clear()
    sys.modules.pop("demo_launchers", None)


def test_our_own_parts_are_registered_like_anybodys() -> None:
    assert isinstance(make_launcher("srun"), Srun)
    assert isinstance(make_launcher("none"), BatchShell)
    assert plugins.plugins("policies")["gpu_hours"].distribution == plugins.OWN_DISTRIBUTION


@pytest.mark.usefixtures("site")
def test_names_are_known_without_an_import() -> None:
    known = plugins.plugins("launchers")
    assert {"horovod", "half", "broken", "srun", "none"} <= set(known)
    assert list(known) == sorted(known)
    assert (known["horovod"].distribution, known["horovod"].version) == ("site-plugins", "2.5")
    assert "demo_launchers" not in sys.modules


@pytest.mark.usefixtures("site")
def test_a_sites_plugin_is_loaded_by_name() -> None:
    made = make_launcher("horovod")
    assert type(made).__module__ == "demo_launchers"


@pytest.mark.usefixtures("site")
def test_a_name_of_ours_is_not_taken() -> None:
    assert isinstance(make_launcher("srun"), Srun)
    same = [p for p in plugins.registered_plugins() if (p.kind, p.name) == ("launchers", "srun")]
    assert [p.distribution for p in same] == [plugins.OWN_DISTRIBUTION, "site-plugins"]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("half", "has no settle and no needs"),
        ("broken", "ModuleNotFoundError"),
        ("quits", "SystemExit: 3"),
    ],
)
def test_a_broken_one_asked_for_by_name_is_an_error(name: str, says: str) -> None:
    with pytest.raises(BrokenPlugin, match=rf"'{name}' of slurmkit.launchers .*2.5\).*{says}"):
        plugins.load_plugin("launchers", name)


@pytest.mark.usefixtures("site")
def test_one_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(BrokenPlugin, match=r"'stuck' of slurmkit.launchers .*KeyError: 'x'"):
        make_launcher("stuck")


@pytest.mark.parametrize("content", [b"[slurmkit.policies]\nno entry\n", b"\xff\xfe"])
def test_a_list_that_cannot_be_read_takes_nobody_down(site: Path, content: bytes) -> None:
    """Nor does one whose package says no name of its own."""
    for name in ("bad", "nameless"):
        (site / f"{name}-1.dist-info").mkdir()
    (site / "bad-1.dist-info" / "METADATA").write_text("Name: bad\nVersion: 1\n")
    (site / "bad-1.dist-info" / "entry_points.txt").write_bytes(content)
    (site / "nameless-1.dist-info" / "entry_points.txt").write_text("[slurmkit.policies]\na = b:C")
    (site / "nameless-1.dist-info" / "METADATA").write_bytes(b"Name: \xff\n")
    assert {"srun", "horovod"} <= set(plugins.plugins("launchers"))
    (bad,) = [p for p in plugins.registered_plugins() if p.kind == plugins.UNREADABLE]
    assert (bad.distribution, bad.version) == ("bad", "1")
    assert plugins.plugins("policies")["a"].distribution == "unknown"


@pytest.mark.usefixtures("site")
def test_a_sites_command_that_is_broken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit_code(cli, ["lost"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("slurmkit: plugin 'lost' of slurmkit.commands")
    assert said.count("\n") == 1
    assert run_to_exit_code(cli, ["--help"]) == 0
    assert "from demo_launchers.nowhere:X" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("launchers", "srum", "no plugin 'srum' of slurmkit.launchers; did you mean 'srun'"),
        (
            "launchers",
            "mpirun-x",
            "known launchers: accelerate, deepspeed, mpi, none, srun, torchrun",
        ),
        ("gpu_metrics", "dcgm", "known gpu_metrics: ledger, prometheus, slurm"),
    ],
)
def test_an_unknown_one_names_what_exists(kind: str, name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        plugins.load_plugin(kind, name)


@pytest.mark.parametrize("module", ["slurmkit.cli.jobs", "slurmkit.cli.submit"])
def test_no_command_pays_for_a_scan_before_it_needs_one(module: str) -> None:
    code = f"import sys, {module}; sys.exit('importlib.metadata' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
