"""Whether PySlurm can be used here, found out without endangering this process.

libslurm ends a process that it finds no configuration in, and PySlurm opens its libraries for all
others to see. So the releases are compared before anything of PySlurm is imported, and then it is
tried once in a process of its own; what that said is kept for ten minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from glob import glob
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import msgspec

from slurmkit.capabilities.cache import cluster_key, conf_path, keep, kept, load_capabilities
from slurmkit.capabilities.model import Capabilities
from slurmkit.errors import BrokenPlugin, SlurmError
from slurmkit.slurm import Slurm, environment_for

_TRIED_FOR = 600  # seconds that an attempt counts
_TIMEOUT = 20  # seconds; libslurm waits 60 for a slurm.conf
_TRY = "import pyslurm; pyslurm.slurmctld.ping_primary()"
_INSTALL = "install the PySlurm that was built beside this Slurm (docs/pyslurm.md)"
_COMMANDS = 'leave it to commands: [submit] backend = "commands"'
_LOCK = threading.Lock()


class Verdict(msgspec.Struct, frozen=True):
    """Whether PySlurm can be used.

    Attributes:
        why_not: in words; empty where it can.
        fix: what to do then.
        version: of PySlurm, empty where there is none.
        taken: epoch seconds of the attempt.
    """

    why_not: str = ""
    fix: str = ""
    version: str = ""
    taken: float = 0.0


def verdict(slurm: Slurm, *, refresh: bool = False) -> Verdict:
    """Judge PySlurm for this process and the cluster of this machine's commands.

    Args:
        slurm: the border to Slurm.
        refresh: try it anew, whatever is kept.
    """
    key = cluster_key(slurm)
    if key is None:
        return Verdict("this is no Slurm of this machine", _COMMANDS)
    try:
        mine = version("pyslurm")
    except PackageNotFoundError:
        return Verdict("PySlurm is not installed", _INSTALL)
    try:
        found = load_capabilities(slurm)
        for why_not, fix in _at_once(slurm, found, mine):
            return Verdict(why_not, fix, mine)
    except SlurmError as error:
        return Verdict(str(error), "try again", mine)
    return _tried(f"{key}-{_mark(found, mine)}", mine, refresh=refresh)


def _at_once(slurm: Slurm, found: Capabilities, mine: str) -> Iterator[tuple[str, str]]:
    """What speaks against it that is known without PySlurm."""
    if _release(mine) != found.release[:2]:
        its = found.config.get("SLURM_VERSION", "an unknown release")
        yield f"PySlurm {mine} is not for Slurm {its}", _INSTALL
    if "torch" in sys.modules:
        yield "torch is loaded in this process, which libslurm's names could break", _COMMANDS
    if not conf_path():
        yield "there is no slurm.conf on this machine, which libslurm would end without", _COMMANDS
    here = slurm.run(["sbatch", "--version"]).strip()
    if _release(here) != found.release[:2]:
        its = found.config.get("SLURM_VERSION", "an unknown release")
        yield f"this machine has {here}, the cluster Slurm {its}", _COMMANDS
    if "oomkillstep" in found.config.get("TaskPluginParam", "").lower():
        yield "TaskPluginParam has OOMKillStep, which jobs of PySlurm would be without", _COMMANDS
    for plugins in _plugins_of_sbatch(found):
        yield f"sbatch has plugins here, which PySlurm would go past: {plugins}", _COMMANDS


def _release(words: str) -> tuple[int, int] | None:
    """`slurm-wlm 24.11.5-1` as `(24, 11)`; of PySlurm, 26.5.0 is for 26.05."""
    match = re.search(r"(\d+)\.(\d+)", words)
    return (int(match[1]), int(match[2])) if match else None


def _plugins_of_sbatch(found: Capabilities) -> Iterator[str]:
    """What a site may have to check, change or refuse what people submit."""
    filters = found.config.get("CliFilterPlugins", "")
    if filters not in ("", "(null)"):
        yield f"CliFilterPlugins={filters}"
    stack = Path(conf_path()).with_name("plugstack.conf")
    if lines := list(_stacked(str(stack))):
        yield f"{lines[0]} in {stack}"


def _stacked(file: str, depth: int = 3) -> Iterator[str]:
    """Plugins that a plugstack.conf names, in files that it includes, too (spank(7))."""
    try:
        lines = Path(file).read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in map(str.strip, lines):
        word, _, rest = line.partition(" ")
        if word.lower() == "include" and depth:
            for each in sorted(glob(str(Path(file).parent / rest.strip()))):  # noqa: PTH207
                yield from _stacked(each, depth - 1)
        elif line and not line.startswith("#"):
            yield line


def _mark(found: Capabilities, mine: str) -> str:
    """Of what an attempt is good for."""
    release = found.config.get("SLURM_VERSION", "")
    return f"{release}-{mine}-{zlib.crc32(sys.executable.encode()):08x}"


def _tried(key: str, mine: str, *, refresh: bool) -> Verdict:
    before = None if refresh else kept("pyslurm", key, Verdict)
    if before is not None and -60 < time.time() - before.taken < _TRIED_FOR:
        return before
    why_not = _trouble()
    fix = f"see `{Path(sys.executable).name} -c '{_TRY}'`" if why_not else ""
    fresh = Verdict(why_not, fix, mine, time.time())
    keep("pyslurm", key, fresh)
    return fresh


def _trouble() -> str:
    """What goes wrong when another process uses PySlurm; empty when nothing does."""
    argv = [sys.executable, "-P", "-c", _TRY]
    environment = environment_for(["sbatch"], os.environ)
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"PySlurm says nothing within {_TIMEOUT} s"
    if done.returncode == 0:
        return ""
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return f"PySlurm ends a process that uses it ({how}): {said[-1] if said else 'no word'}"


def library() -> ModuleType:
    """PySlurm, imported once; only where `verdict` has nothing against it.

    Raises:
        BrokenPlugin: when it cannot be imported.
    """
    with _LOCK:
        flags = sys.getdlopenflags()
        try:
            module = import_module("pyslurm")
            submission = import_module("pyslurm.core.job.submission")
        except (Exception, SystemExit) as error:  # foreign code may raise anything
            raise BrokenPlugin(f"PySlurm: {type(error).__name__}: {error}") from error
        finally:
            sys.setdlopenflags(flags)
        # It would hand on every SLURM_* of this process, beside the environment it is given.
        submission.pyenviron = {}  # type: ignore[attr-defined]
        return module
