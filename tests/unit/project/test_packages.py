"""packaging/: man pages, requirements, and the layout of the packages; no container is needed."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import requires
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import click
import pytest

from slurmkit.cli.main import cli
from slurmkit.config.check import inspect_configuration
from slurmkit.version import __version__

ROOT = Path(__file__).parents[3]
PACKAGING = ROOT / "packaging"
_REQUESTS = {".TH", ".SH", ".PP", ".TP", ".B", ".BR", ".I", ".nf", ".fi"}


def load(name: str) -> ModuleType:
    """Import a script of packaging/; the folder's name is that of a library."""
    spec = spec_from_file_location(name, PACKAGING / f"{name}.py")
    assert spec
    assert spec.loader
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


man, requirements = load("man"), load("requirements")
stage = load("stage")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """All man pages by file name."""
    return dict(man.man_pages())


def command_names(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield each command that help shows, as its page is called."""
    yield context.command_path.replace(" ", "-") + ".1"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below and not below.hidden:
                yield from command_names(
                    below, click.Context(below, info_name=name, parent=context)
                )


def test_each_command_has_a_man_page(pages: dict[str, str]) -> None:
    expected = set(command_names(cli, click.Context(cli, info_name="slurmkit")))
    assert pages.keys() == expected
    assert len(expected) > 100


def test_man_pages_are_roff(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        requests = {line.split()[0] for line in text.splitlines() if line.startswith((".", "'"))}
        assert requests <= _REQUESTS, name
        assert not re.search(r"[\b\t]|[^\\]--", text), name
        headings = [line for line in text.splitlines() if line.startswith(".SH")]
        assert headings[:3] == [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"], name
        assert headings[-1] == ".SH SEE ALSO", name
        assert text.count("\n.nf\n") == text.count("\n.fi\n"), name


def test_a_man_page_says_what_help_says(pages: dict[str, str]) -> None:
    page = pages["slurmkit-submit.1"]
    assert page.startswith(f'.TH SLURMKIT-SUBMIT 1 1970-01-01 "slurmkit {__version__}"')
    assert r".B \-G, \-\-gpus TEXT" in page
    assert r".SH EXAMPLES" in page
    assert "\nslurmkit submit \\-\\-time 2:00:00 job.sh\n" in page
    assert r".BR slurmkit (1)" in page
    assert r".BR slurmkit\-ledger\-ingest (1)" in pages["slurmkit-ledger.1"]


def test_text_is_no_request() -> None:
    assert man.roff(".venv and 'x' \\ - a^b~c") == r"\&.venv and \(aqx\(aq \e \- a\(hab\(tic"


def test_requirements_are_those_of_the_wheel() -> None:
    """pip is told not to look for dependencies, so all of them must be in the list."""
    kept = requirements.runtime_requirements(ROOT.joinpath("constraints.txt").read_text("utf-8"))
    names = re.findall(r"^([\w.-]+)==", kept, re.MULTILINE)
    assert not {"pytest", "mypy", "ruff", "hatchling", "pre-commit"} & set(names)
    assert names.count("numpy") == 2  # Python 3.11 has an entry of its own
    todo, seen = {"slurmkit-hpc"}, set()
    while todo:
        seen.add(name := todo.pop())
        for needed in requires(name) or ():
            only_with = re.search(r"extra == ['\"](.+?)['\"]", needed)
            if only_with and (name != "slurmkit-hpc" or only_with[1] in ("all", "pyslurm")):
                continue
            if not re.search(r"win32|python_version < |PyPy", needed):
                found = re.match(r"[\w.-]+", needed)
                assert found
                todo |= {re.sub(r"[-_.]+", "-", found[0]).lower()} - seen
    assert seen - {"slurmkit-hpc"} <= set(names)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ("click==8 \\\n    # via slurmkit-hpc (pyproject.toml)\n", "click has no hash"),
        ("click==8 \\\n    --hash=sha256:1\n", "click has no hash or no `# via`"),
    ],
)
def test_a_requirement_without_a_hash_is_refused(constraints: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        requirements.runtime_requirements(constraints)


def test_a_node_gets_only_what_it_needs() -> None:
    text = requirements.runtime_requirements(
        ROOT.joinpath("constraints.txt").read_text("utf-8"),
        own=requirements.needed_with_extra("gpu-exporter"),
    )
    names = set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))
    assert names >= {
        "click",
        "clustershell",
        "msgspec",
        "nvidia-ml-py",
        "prometheus-client",
        "rich",
    }
    assert not names & {"sqlalchemy", "textual", "pandas", "flask", "paramiko", "psycopg"}


PACKAGES = ("slurmkit", "slurmkit-node")
_MODULES = Path("/opt/slurmkit/lib/python3.11/site-packages")


@pytest.fixture(
    scope="module",
    params=[(family, package) for family in ("debian", "redhat") for package in PACKAGES],
    ids="-".join,
)
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a package but those of the environment, in the folder FAMILY/PACKAGE."""
    family, package = request.param
    root = tmp_path_factory.mktemp("tree") / family / package
    stage.stage(root, ROOT, family, package, _MODULES)
    return root


def files(root: Path) -> dict[str, bytes | str]:
    """Each file or link below a folder -> its content, or where the link leads."""
    return {
        str(path.relative_to(root)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_the_layout(tree: Path) -> None:
    found = files(tree)
    assert found["usr/bin/slurmkit"] == "/opt/slurmkit/bin/slurmkit"
    family = tree.parent.name
    for shell, target in stage.COMPLETIONS[family].items():
        text = found[target]
        assert isinstance(text, bytes)
        assert b"_SLURMKIT_COMPLETE=" + shell.encode() in text
    page = found["usr/share/man/man1/slurmkit-queue.1.gz"]
    assert isinstance(page, bytes)
    assert gzip.decompress(page).startswith(b".TH SLURMKIT-QUEUE 1")
    for name, command in (("gpu-exporter", b"gpu-exporter"), ("ledger", b"ledger serve")):
        unit = found.get(f"usr/lib/systemd/system/slurmkit-{name}.service")
        if (name, tree.name) == ("ledger", "slurmkit-node"):
            assert unit is None
        else:
            assert isinstance(unit, bytes)
            assert b"ExecStart=/opt/slurmkit/bin/slurmkit " + command in unit
    assert found["usr/share/slurmkit/slurm"] == str(_MODULES / "slurmkit_plugins/slurm")
    assert ("usr/share/slurmkit/monitoring" in found) == (tree.name == "slurmkit")
    module = found[f"{stage.MODULE_FILES[family]}/{__version__}"]
    assert isinstance(module, bytes)
    assert module.startswith(b"#%Module")
    assert b"@" not in module
    assert b"prepend-path PATH /opt/slurmkit/command\n" in module
    assert found["opt/slurmkit/command/slurmkit"] == "../bin/slurmkit"
    assert (tree / "etc/slurmkit/conf.d").is_dir()


def test_the_layout_is_the_same_each_time(tree: Path, tmp_path: Path) -> None:
    stage.stage(tmp_path, ROOT, tree.parent.name, tree.name, _MODULES)
    assert files(tmp_path) == files(tree)


@pytest.mark.parametrize("tree", [("redhat", each) for each in PACKAGES], indirect=True)
def test_every_file_is_in_the_rpm(tree: Path) -> None:
    spec = (
        PACKAGING.joinpath("rpm/slurmkit.spec")
        .read_text("utf-8")
        .replace("%{environment}", "/opt/slurmkit")
        .replace("%{name}", tree.name)
    )
    listed = [line.split()[-1] for line in spec.partition("%files\n")[2].splitlines() if line]
    for name in files(tree):
        path = f"/{name}"
        assert any(fnmatch(path, each) or path.startswith(f"{each}/") for each in listed), path


def test_services_of_the_scripts_are_installed(tree: Path) -> None:
    """What is stopped at a removal, and started again at an upgrade."""
    script = PACKAGING.joinpath("inside").read_text("utf-8")
    for table in ("RESTARTED", "UNITS"):
        (text,) = re.findall(rf"declare -A {table}=\((.*?)\)", script, re.DOTALL)
        (of_package,) = re.findall(rf'\[{tree.name}\]="?(.*?)(?:"|\n|$)', text)
        assert of_package
        for unit in of_package.split():
            assert (tree / "usr/lib/systemd/system" / unit).is_file(), unit


@pytest.mark.parametrize("name", ["config", "login-node", "accounting-host"])
def test_the_sample_configurations_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = PACKAGING / f"files/{name}.toml"
    monkeypatch.setenv("SLURMKIT_CONFIG", str(path))
    assert list(inspect_configuration().problems) == []
    assert bool(tomllib.loads(path.read_text("utf-8"))) == (name != "config")


def test_the_control_file_has_no_unknown_field() -> None:
    """Each @NAME@ of a template is one that packaging/inside fills in."""
    script = PACKAGING.joinpath("inside").read_text("utf-8")
    for name in ("control.in", "control-node.in", "copyright", "postinst", "prerm"):
        for mark in re.findall(r"@\w+@", PACKAGING.joinpath("debian", name).read_text("utf-8")):
            assert mark in script, mark


@pytest.mark.parametrize("script", ["build", "trial"])
def test_an_unknown_suite_is_refused(script: str) -> None:
    done = subprocess.run(
        [PACKAGING / script, "sarge"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "sarge" in done.stderr
    assert all(suite in done.stderr for suite in ("bookworm", "trixie", "forky"))
