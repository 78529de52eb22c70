"""Commands whose optional dependencies are not installed: one line says how to install them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurmkit.cli.main import CommandEntry
from slurmkit.config import extras
from slurmkit.config.extras import EXTRAS, install_command
from slurmkit.doctor import installation
from slurmkit.errors import MissingExtra

# Runs command lines in an interpreter in which the modules of an extra cannot be imported.
RUN_WITHOUT = """
import json, sys
missing, lines = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(missing))
from slurmkit.cli.main import cli, run_to_exit_code
for line in lines:
    print(f"{' '.join(line)}:", file=sys.stderr, end=" ", flush=True)
    print(run_to_exit_code(cli, line), flush=True)
"""
OF_ACCOUNTING = [
    *(["report", name] for name in ("usage", "budget", "wait", "efficiency", "reconcile")),
    ["report", "explain", "--job", "1"],
    ["report", "mail", "--month", "2026-10"],
    *(["ledger", name] for name in ("ingest", "rebuild", "rejects", "serve", "status", "verify")),
    ["ledger", "close", "2026-10"],
    ["ledger", "retract", "1"],
    ["ledger", "export", "sqlite:////x.db"],
    ["ledger", "import", "sqlite:////x.db"],
    ["setup"],
    ["ledger", "backup", "x.gz"],
    ["ledger", "restore", "x.gz"],
    *(["ledger", "people", name] for name in ("sync", "unmapped")),
    ["ledger", "people", "show", "alice"],
    ["ledger", "people", "overrides", "check"],
]


def run_without(missing: tuple[str, ...], lines: list[list[str]]) -> tuple[list[str], list[str]]:
    """Return the exit codes and what was written to standard error, by line."""
    argv = [sys.executable, "-c", RUN_WITHOUT, json.dumps([missing, lines])]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}  # as in an environment that is active
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    return done.stdout.split(), done.stderr.splitlines()


def test_each_command_without_its_extra_is_one_line_and_exit_1() -> None:
    codes, said = run_without(EXTRAS["accounting"], OF_ACCOUNTING)
    assert codes == ["1"] * len(OF_ACCOUNTING)
    assert len(said) == len(OF_ACCOUNTING)
    for line in said:
        assert "which is not installed; run: pip install '" in line
        assert line.endswith("[accounting]'")


@pytest.mark.parametrize(
    ("module", "line", "extra"),
    [
        ("sqlalchemy", ["report", "usage"], "accounting"),
        ("textual", ["tui"], "tui"),
        ("plotext", ["tui"], "tui"),
        ("paramiko", ["clusters"], "ssh"),
        ("pynvml", ["gpu-exporter"], "gpu-exporter"),
        ("paramiko", ["--cluster", "lab", "queue"], "ssh"),
        ("psycopg", ["ledger", "status", "--db", "postgresql://u@127.0.0.1/x"], "postgres"),
    ],
)
def test_the_missing_module_and_its_extra_are_named(
    module: str, line: list[str], extra: str
) -> None:
    codes, said = run_without((module,), [line])
    assert codes == ["1"]
    assert f" needs {module}, which is not installed; run: pip install '" in said[0]
    assert said[0].endswith(f"[{extra}]'")


def test_a_command_that_cannot_be_imported_names_the_extra() -> None:
    with pytest.raises(MissingExtra, match=r"needs not_installed_anywhere, .*\[tui\]'"):
        CommandEntry("not_installed_anywhere.cli:x", "", "tui").load()


def test_extras_are_those_of_the_distribution() -> None:
    """Every extra of pyproject.toml but `all` and pyslurm, which is built by hand."""
    text = Path(__file__).parents[3].joinpath("pyproject.toml").read_text("utf-8")
    begin = text.index("[project.optional-dependencies]")
    for extra, modules in EXTRAS.items():
        listed = text[text.index(f"\n{extra} = [", begin) :].partition("]\n")[0]
        assert listed.count(">=") == len(modules)
        for module in modules:
            package = {"pynvml": "nvidia-ml-py"}.get(module, module.replace("_", "-"))
            assert f'"{package}' in listed


@pytest.mark.parametrize(
    ("noted", "source"),
    [
        (None, "slurmkit-hpc[ssh]"),
        ({"url": "file:///nosuch/checkout", "dir_info": {"editable": True}}, ".[ssh]"),
        ({"url": "https://x.org/slurmkit.whl", "archive_info": {}},
         "slurmkit-hpc[ssh] @ https://x.org/slurmkit.whl"),
        ({"url": "https://x.org/slurmkit", "vcs_info": {"vcs": "git", "commit_id": "1"}},
         "slurmkit-hpc[ssh] @ git+https://x.org/slurmkit"),
    ],
)  # fmt: skip
def test_the_command_installs_from_where_slurmkit_came(
    noted: dict[str, object] | None, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is on a package index unless slurmkit came from there."""
    note_origin(noted, monkeypatch)
    assert install_command("ssh") == f"pip install '{source}'"


def test_no_hint_names_an_install_of_its_own() -> None:
    """Every hint is made by `slurmkit.config.extras`, of pieces."""
    root = Path(__file__).parents[3]
    packages = ("slurmkit", "accounting", "containers", "plugins", "tui")
    found = {
        (str(path.relative_to(root)), text)
        for package in packages
        for path in root.joinpath(package).rglob("*.py")
        for text in ("pip install ", "slurmkit-hpc")
        if text in path.read_text("utf-8")
    }
    assert found == {("slurmkit/config/plugins.py", "slurmkit-hpc")}


def test_the_command_names_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    note_origin({"url": checkout.as_uri(), "dir_info": {}}, monkeypatch)
    assert install_command("tui") == f"pip install '{checkout}[tui]'"
    monkeypatch.chdir(checkout)
    assert install_command("tui") == "pip install '.[tui]'"


def test_a_wheel_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "slurmkit_hpc-0.2.0-py3-none-any.whl"
    note_origin({"url": wheel.as_uri(), "archive_info": {}}, monkeypatch)
    assert install_command("tui") == f"pip install '{wheel.name}[tui]'"
    wheel.touch()
    assert install_command("tui") == f"pip install '{wheel}[tui]'"


def test_an_environment_that_is_not_active_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain pip would install into another Python, or is not there."""
    note_origin(None, monkeypatch)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert install_command("ssh") == (
        f"{shlex.quote(sys.executable)} -m pip install 'slurmkit-hpc[ssh]'"
    )


@pytest.mark.parametrize(
    ("installer", "command"),
    [
        ("dpkg", "apt-get install --reinstall ./slurmkit_*.deb"),
        ("rpm", "dnf reinstall ./slurmkit-[0-9]*.rpm"),
        ("dpkg, slurmkit-node", "apt-get install ./slurmkit_*.deb"),
        (
            "rpm, slurmkit-node",
            "dnf remove slurmkit-node && dnf install ./slurmkit-[0-9]*.rpm",
        ),
        ("uv", f"uv pip install --python {shlex.quote(sys.executable)} 'slurmkit-hpc[ssh]'"),
    ],
)
def test_the_command_is_that_of_the_installer(
    installer: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_origin(None, monkeypatch, installer)
    assert install_command("ssh") == command


def test_doctor_knows_what_each_extra_is_for() -> None:
    assert installation._USE_OF_EXTRA.keys() == EXTRAS.keys()


@pytest.fixture
def overwritten(tmp_path: Path) -> Path:
    """A folder of installed packages in which PyPI's slurmkit 0.1.7 came after ours."""
    root = Path(__file__).parents[3]
    shutil.copytree(root / "slurmkit", tmp_path / "slurmkit")
    (tmp_path / "slurmkit/_version.py").write_text('__version__ = "0.1.7"\n')
    (tmp_path / "slurmkit/__init__.py").write_text(
        "from slurmkit._version import __version__\nfrom slurmkit.config import Config\n"
    )
    (tmp_path / "slurmkit/cli/__init__.py").write_text("from slurmkit.cli.app import app\n")
    (tmp_path / "slurmkit/cli/main.py").write_text("import typer\n")
    info = tmp_path / "slurmkit-0.1.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slurmkit\nVersion: 0.1.7\n")
    return tmp_path


@pytest.mark.parametrize("program", ["slurmkit", "train.py"])
def test_the_other_slurmkit_over_ours_is_named(program: str, overwritten: Path) -> None:
    """Its command and its `__init__` replace ours, so the import of our `config` must say it."""
    script = overwritten / "bin" / program
    script.parent.mkdir()
    script.write_text("from slurmkit.cli.main import main\nmain()\n")
    env = {**os.environ, "PYTHONPATH": str(overwritten)}
    argv = [sys.executable, str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    *before, line = done.stderr.splitlines()
    assert bool(before) == (program != "slurmkit")  # a traceback, where a program imports us
    assert "slurmkit 0.1.7, an unrelated package with the same import name" in line
    assert f"in {overwritten}/slurmkit; run: " in line
    assert "pip uninstall slurmkit && " in line
    assert "--force-reinstall --no-deps" in line


def test_a_wrong_name_is_no_sign_of_the_other_slurmkit() -> None:
    with pytest.raises(ImportError, match=r"^cannot import name 'Config' from 'slurmkit.config'"):
        from slurmkit.config import Config  # noqa: F401, PLC0415


def note_origin(
    noted: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch, installer: str = "pip"
) -> None:
    """Let an installer have noted where slurmkit came from, in an environment that is active."""
    files = {"METADATA": "Name: slurmkit-hpc\n", "INSTALLER": f"{installer}\n"}
    if noted is not None:
        files["direct_url.json"] = json.dumps(noted)

    class Installed:
        def read_text(self, name: str) -> str | None:
            return files.get(name)

    monkeypatch.setattr("importlib.metadata.distribution", lambda _: Installed())
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert extras.OWN_DISTRIBUTION == "slurmkit-hpc"
