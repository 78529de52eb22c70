"""Print figures of the source tree: files, layers, cycles, names, and the walk of one submit.

    .venv/bin/python tests/structure.py            # this tree
    .venv/bin/python tests/structure.py --json

Every import counts, also under TYPE_CHECKING and inside functions. The walk is the files and
functions of slurmkit that one `slurmkit submit` of a two-node GPU job enters, with the cluster
answered from tests/recorded and nothing cached. The stand-in that answers is not counted.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
HOMES = {
    "slurmkit": ROOT / "slurmkit",
    "slurmkit_accounting": ROOT / "accounting/slurmkit_accounting",
    "slurmkit_containers": ROOT / "containers/slurmkit_containers",
    "slurmkit_plugins": ROOT / "plugins/slurmkit_plugins",
    "slurmkit_tui": ROOT / "tui/slurmkit_tui",
}
SUBMIT = (
    "submit --gpus-per-node a100:2 --nodes 2 --time 1:00:00 --partition gpu -- python train.py"
).split()
STAND_IN = str(ROOT / "slurmkit/testing.py")
_CRUMB = 3  # lines of a body
_SMALL = 60  # lines of a file


def modules() -> dict[str, Path]:
    """Module name to file; a package is its __init__."""
    found = {}
    for package, home in HOMES.items():
        for path in sorted(home.rglob("*.py")):
            parts = [package, *path.relative_to(home).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """(module, name) of every import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


def arrows(files: Mapping[str, Path], trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Module to the modules it imports; a package's __init__ is not a target."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for name, part in imports(tree):
            target = f"{name}.{part}" if f"{name}.{part}" in files else name
            if target in files and target != module and files[target].name != "__init__.py":
                graph[module].add(target)
    return graph


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of modules that import each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for target in graph.get(module, ()):
            if target not in order:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], order[target])
        if low[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                groups.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for module in list(graph):
        if module not in order:
            visit(module)
    return groups


def function_imports(tree: ast.Module) -> int:
    """Import statements inside functions."""
    found = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    return len(found)


def crumbs(tree: ast.Module) -> int:
    """Private top-level functions of at most three lines that the file names once."""
    used = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return sum(
        used[node.name] == 1 and _lines(node) <= _CRUMB and not node.decorator_list
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_")
    )


def _lines(function: ast.FunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def walk() -> tuple[int, int]:
    """Return the files and functions of ours that one submit enters."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    sys.path.insert(0, str(ROOT / "tests/unit"))
    from recorded_lab import slurm  # noqa: PLC0415

    from slurmkit.cli.main import cli, run_to_exit_code  # noqa: PLC0415
    from slurmkit.cluster import cluster  # noqa: PLC0415
    from slurmkit.slurm.machine import LocalMachine  # noqa: PLC0415

    LocalMachine.user = "alice"  # type: ignore[assignment] # who has an account there
    entered = set()
    homes = tuple(f"{home}{os.sep}" for home in HOMES.values())

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(homes) or code.co_name[0] == "<":
            return
        if code.co_filename == STAND_IN:
            return
        if code.co_flags & inspect.CO_OPTIMIZED:  # a function, not the body of a class
            entered.add((code.co_filename, code.co_qualname))

    fake = slurm()
    cluster._LOCAL = fake  # type: ignore[assignment]
    out = io.StringIO()
    sys.setprofile(note)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = run_to_exit_code(cli, SUBMIT)
    finally:
        sys.setprofile(None)
    if code:
        raise SystemExit(f"the submit ended with {code}: {out.getvalue()}")
    return len({file for file, _ in entered}), len(entered)


def _walked() -> dict[str, int]:
    """Run `walk` in a process and folders of its own, so that nothing is cached."""
    with tempfile.TemporaryDirectory() as home:
        folders = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")
        done = subprocess.run(
            [sys.executable, __file__, "--walk"],
            env={**os.environ, **dict.fromkeys(folders, home)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def figures() -> dict[str, object]:
    """All figures, by what they count."""
    files = modules()
    texts = {module: path.read_text("utf-8") for module, path in files.items()}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    lines = {module: text.count("\n") for module, text in texts.items()}
    names = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = {
        contract["containers"][0]: len(contract["layers"])
        for contract in contracts["contracts"]
        if contract["type"] == "layers"
    }
    modules_of_code = [module for module, path in files.items() if path.name != "__init__.py"]
    return {
        "files": len(files),
        "lines": sum(lines.values()),
        f"files under {_SMALL} lines": sum(lines[module] < _SMALL for module in modules_of_code),
        "layers": layers,
        "import cycles": len(cycles(arrows(files, trees))),
        "class names used twice or more": sorted(name for name, n in names.items() if n > 1),
        "imports inside functions": sum(map(function_imports, trees.values())),
        f"private functions used once, of {_CRUMB} lines at most": sum(map(crumbs, trees.values())),
        "submit enters": _walked(),
    }


def main() -> None:
    """Print the figures."""
    if "--walk" in sys.argv:
        entered, functions = walk()
        print(json.dumps({"files": entered, "functions": functions}))
        return
    found = figures()
    if "--json" in sys.argv:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        if isinstance(value, dict):
            text = ", ".join(f"{key} {number}" for key, number in value.items())
        elif isinstance(value, list):
            text = " ".join([str(len(value)), *value])
        else:
            text = str(value)
        print(f"{name}: {text}")


if __name__ == "__main__":
    main()
