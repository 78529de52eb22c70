"""Files that run on nodes and on slurmctld's host: old Python, the standard library, bash."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OLDEST = (3, 6)
# Each file, and those of ours that are copied beside it.
STANDALONE: dict[str, tuple[str, ...]] = {
    "plugins/slurmkit_plugins/jupyter_kernel/on_node.py": (),
    "plugins/slurmkit_plugins/jupyterhub/in_job.py": (),
    "plugins/slurmkit_plugins/slurm/slurmkit-mail": (),
    "plugins/slurmkit_plugins/slurm/node_check.py": ("node_checks", "node_settings"),
    "plugins/slurmkit_plugins/slurm/node_checks.py": ("node_settings",),
    "plugins/slurmkit_plugins/slurm/node_settings.py": (),
    "slurmkit/diagnose/inside_job.py": (),
    "slurmkit/executor/worker.py": ("slurmkit_resultfiles", "slurmkit"),
    "slurmkit/executor/resultfiles.py": (),
    "slurmkit/interactive/ssh_keeper.py": (),
    "slurmkit/planning/preflight/inside.py": (),
    "accounting/slurmkit_accounting/benchmarks/inside.py": (),
}
# Of the site's or the job's own Python, imported where it is there.
OPTIONAL = {"torch", "cloudpickle"}
# Modules that Python 3.6 does not have.
NEWER = {"contextvars", "dataclasses", "graphlib", "tomllib", "zoneinfo"}
SHELL = sorted(
    [
        *(ROOT / "slurmkit" / "planning" / "survive").glob("*.sh"),
        *(ROOT / "plugins" / "slurmkit_plugins" / "slurm" / each for each in ("prolog", "epilog")),
        ROOT / "plugins" / "slurmkit_plugins" / "slurm" / "gpus.sh",
    ]
)


def claims(path: Path) -> bool:
    """Tell whether a file says in its first lines that it runs on Python 3.6."""
    head = "\n".join(path.read_text("utf-8").splitlines()[:12])
    return bool(re.search(r"\b3\.6\b", head))


def test_every_file_that_claims_it_is_tested() -> None:
    sources = [
        path
        for package in ("slurmkit", "accounting", "plugins", "containers", "tui")
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and (path.suffix == ".py" or not path.suffix)
        and path.parent.name != "bin"
    ]
    found = {str(path.relative_to(ROOT)) for path in sources if claims(path)}
    assert found == STANDALONE.keys()


@pytest.mark.parametrize("name", STANDALONE)
def test_a_file_for_nodes_has_the_syntax_of_old_python(name: str) -> None:
    ast.parse((ROOT / name).read_text("utf-8"), name, feature_version=OLDEST)


@pytest.mark.parametrize("name", STANDALONE)
def test_a_file_for_nodes_needs_the_standard_library_alone(name: str) -> None:
    allowed = (sys.stdlib_module_names - NEWER) | OPTIONAL | {*STANDALONE[name]}
    assert _imported(ast.parse((ROOT / name).read_text("utf-8"))) - allowed == set()


def _imported(tree: ast.AST) -> set[str]:
    """Return the top names of the modules that a file imports anywhere."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or ".").partition(".")[0])
    return names


def test_newer_syntax_is_found() -> None:
    for text in ("if (n := 1): pass", "def f(a, /): pass", "match 1:\n  case 1: pass"):
        with pytest.raises(SyntaxError):
            ast.parse(text, feature_version=OLDEST)


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_a_shell_file_for_nodes_is_what_bash_reads(path: Path) -> None:
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run([bash, "-n", str(path)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
