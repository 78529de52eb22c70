"""The test whether PySlurm can be used here, without risk for this process.

libslurm ends a process in which it finds no configuration, and PySlurm loads its libraries with
global symbols. So the releases are compared before PySlurm is imported. Then PySlurm is tried once
in a separate process, and the result is cached for ten minutes.
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

from slurmkit.errors import BrokenPlugin, SlurmError
from slurmkit.slurm.commands import SlurmCommands, environment_for
from slurmkit.state.cache import cluster_key, conf_path, load_cached, load_capabilities, save_cached
from slurmkit.state.model import Capabilities

_CACHED_SECONDS = 600  # seconds that the result of a trial is cached
_TIMEOUT = 20  # seconds; libslurm waits 60 for a slurm.conf
_TRIAL_CODE = "import pyslurm; pyslurm.slurmctld.ping_primary()"
_INSTALL_FIX = "install a PySlurm that was built for this Slurm (docs/pyslurm.md)"
_COMMANDS_FIX = 'use sbatch instead: [submit] backend = "commands"'
_LOCK = threading.Lock()


class PyslurmCheck(msgspec.Struct, frozen=True):
    """The result of the test whether PySlurm can be used.

    Attributes:
        why_not: why PySlurm cannot be used; empty if it can.
        fix: what to do about it.
        version: PySlurm's version; empty if it is not installed.
        taken: epoch seconds of the trial.
    """

    why_not: str = ""
    fix: str = ""
    version: str = ""
    taken: float = 0.0


def check_pyslurm(slurm: SlurmCommands, *, refresh: bool = False) -> PyslurmCheck:
    """Test whether PySlurm can be used in this process, with this machine's cluster.

    Args:
        slurm: runs Slurm's commands.
        refresh: try again, even if a result is cached.
    """
    key = cluster_key(slurm)
    if key is None:
        return PyslurmCheck("these are not Slurm's commands of this machine", _COMMANDS_FIX)
    try:
        pyslurm = version("pyslurm")
    except PackageNotFoundError:
        return PyslurmCheck("PySlurm is not installed", _INSTALL_FIX)
    try:
        capabilities = load_capabilities(slurm)
        for why_not, fix in _known_obstacles(slurm, capabilities, pyslurm):
            return PyslurmCheck(why_not, fix, pyslurm)
    except SlurmError as error:
        return PyslurmCheck(str(error), "try again", pyslurm)
    return _load_or_try(f"{key}-{_trial_key(capabilities, pyslurm)}", pyslurm, refresh=refresh)


def _known_obstacles(
    slurm: SlurmCommands, capabilities: Capabilities, pyslurm: str
) -> Iterator[tuple[str, str]]:
    """Yield reasons against PySlurm that are known without importing it, each with its fix."""
    if _parse_release(pyslurm) != capabilities.release[:2]:
        its = capabilities.config.get("SLURM_VERSION", "an unknown release")
        yield f"PySlurm {pyslurm} is not for Slurm {its}", _INSTALL_FIX
    if "torch" in sys.modules:
        yield "torch is loaded in this process; symbols of libslurm could break it", _COMMANDS_FIX
    if not conf_path():
        yield (
            "there is no slurm.conf on this machine; without it libslurm ends the process",
            _COMMANDS_FIX,
        )
    here = slurm.run(["sbatch", "--version"]).strip()
    if _parse_release(here) != capabilities.release[:2]:
        its = capabilities.config.get("SLURM_VERSION", "an unknown release")
        yield f"this machine has {here}, the cluster Slurm {its}", _COMMANDS_FIX
    if "oomkillstep" in capabilities.config.get("TaskPluginParam", "").lower():
        yield (
            "TaskPluginParam has OOMKillStep, which jobs sent by PySlurm would not get",
            _COMMANDS_FIX,
        )
    for plugins in _sbatch_plugins(capabilities):
        yield f"sbatch runs plugins here that PySlurm would skip: {plugins}", _COMMANDS_FIX


def _parse_release(words: str) -> tuple[int, int] | None:
    """Parse `slurm-wlm 24.11.5-1` to `(24, 11)`; PySlurm 26.5.0 is for Slurm 26.05."""
    match = re.search(r"(\d+)\.(\d+)", words)
    return (int(match[1]), int(match[2])) if match else None


def _sbatch_plugins(capabilities: Capabilities) -> Iterator[str]:
    """Yield sbatch's own plugins, with which a site checks, changes or refuses submits."""
    filters = capabilities.config.get("CliFilterPlugins", "")
    if filters not in ("", "(null)"):
        yield f"CliFilterPlugins={filters}"
    stack = Path(conf_path()).with_name("plugstack.conf")
    if lines := list(_plugstack_plugins(str(stack))):
        yield f"{lines[0]} in {stack}"


def _plugstack_plugins(file: str, depth: int = 3) -> Iterator[str]:
    """Yield the plugins that a plugstack.conf and the files it includes name (spank(7))."""
    try:
        lines = Path(file).read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in map(str.strip, lines):
        word, _, rest = line.partition(" ")
        if word.lower() == "include" and depth:
            for each in sorted(glob(str(Path(file).parent / rest.strip()))):  # noqa: PTH207
                yield from _plugstack_plugins(each, depth - 1)
        elif line and not line.startswith("#"):
            yield line


def _trial_key(capabilities: Capabilities, pyslurm: str) -> str:
    """Return the part of the cache key that changes with Slurm, PySlurm and this Python."""
    release = capabilities.config.get("SLURM_VERSION", "")
    return f"{release}-{pyslurm}-{zlib.crc32(sys.executable.encode()):08x}"


def _load_or_try(key: str, pyslurm: str, *, refresh: bool) -> PyslurmCheck:
    """Return the cached result of the trial, or try PySlurm now."""
    before = None if refresh else load_cached("pyslurm", key, PyslurmCheck)
    if before is not None and -60 < time.time() - before.taken < _CACHED_SECONDS:
        return before
    why_not = _try_in_process()
    fix = f"see `{Path(sys.executable).name} -c '{_TRIAL_CODE}'`" if why_not else ""
    fresh = PyslurmCheck(why_not, fix, pyslurm, time.time())
    save_cached("pyslurm", key, fresh)
    return fresh


def _try_in_process() -> str:
    """Try PySlurm in another process; return what went wrong, empty if nothing did."""
    argv = [sys.executable, "-P", "-c", _TRIAL_CODE]
    environment = environment_for(["sbatch"], os.environ)
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"PySlurm gave no answer in {_TIMEOUT} s"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return f"a process that used PySlurm ended ({how}): {lines[-1] if lines else 'no message'}"


def import_pyslurm() -> ModuleType:
    """Import PySlurm; call it only if `check_pyslurm` found no reason against it.

    Raises:
        BrokenPlugin: when PySlurm cannot be imported.
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
        # Otherwise it adds every SLURM_* of this process to the job's environment.
        submission.pyenviron = {}  # type: ignore[attr-defined]
        return module
