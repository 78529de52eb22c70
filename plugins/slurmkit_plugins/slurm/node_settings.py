"""The kinds of checks of a node, and their settings in slurmkit_node.conf.

Installed in /etc/slurm, next to node_check.py and node_checks.py. It stands alone: the standard
library of Python 3.6 or later.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

CONF_FILE = "/etc/slurm/slurmkit_node.conf"
SEVERITIES = ("note", "drain", "page")
CONTEXTS = ("hand", "health", "prolog", "epilog")
# Seconds for all checks together. slurmd ends a health check after 60 s.
DEADLINES = {"hand": 45.0, "health": 45.0, "prolog": 1.5, "epilog": 20.0}


class CheckInfo(NamedTuple):
    """One kind of check.

    Attributes:
        source: what it is read from; a key of `SOURCES`.
        text: what is wrong when it fails.
        contexts: where it runs.
    """

    source: str
    text: str
    contexts: "tuple[str, ...]" = CONTEXTS


CHECKS = {
    "gpus": CheckInfo("smi", "a GPU is missing or does not answer (drain, page)"),
    "recovery": CheckInfo("smi", "a GPU asks for a reset or a reboot (drain)"),
    "ecc": CheckInfo("smi", "uncorrectable memory errors since the last reset (drain)"),
    "remap": CheckInfo(
        "smi", "memory to be remapped or repaired (drain), or that cannot be (page)"
    ),
    "throttle": CheckInfo("smi", "clocks are held back by heat or the power supply (note)"),
    "clocks": CheckInfo("smi", "clocks are set lower than the GPU's default (note)"),
    "pcie": CheckInfo("smi", "fewer PCIe lanes than the other GPUs have (note)"),
    "nvlink": CheckInfo("nvlink", "fewer NVLinks than the other GPUs have (note; SXM: drain)"),
    "xid": CheckInfo("kernel_log", "Xids of GPUs, SXids of NVSwitches (note, drain, page)"),
    "infiniband": CheckInfo("infiniband", "a port is down or slow (note; CHECK_INFINIBAND: drain)"),
    "tmp": CheckInfo("tmp", "a file system is full (note), is missing or hangs (drain)"),
    "leftovers": CheckInfo(
        "leftovers", "processes of jobs that have ended (note)", ("hand", "health")
    ),
    "diag": CheckInfo(
        "diag", "dcgmi diag has failed (drain; see CHECK_DIAG)", ("health", "epilog")
    ),
}


class CheckResult(NamedTuple):
    """What one check says, of the node or of one GPU.

    Attributes:
        check: a key of `CHECKS`.
        state: `ok`, `note`, `drain`, `page`, `unknown`, or `skipped`.
        text: what is wrong, or what is fine.
        pci: address of the GPU, as `0000:07:00.0`; empty for the node.
    """

    check: str
    state: str
    text: str
    pci: str = ""


class BadSettings(Exception):
    """An error in the configuration file."""


class CheckSettings(NamedTuple):
    """The CHECK_ settings of slurmkit_node.conf, which prolog and epilog read as shell.

    Attributes:
        scripts: which of our prolog and epilog run node_check.py; they read that themselves.
        skip: checks that do not run.
        severity: severity of a check instead of its own.
        gpus: number of GPUs; None for what `slurmd -G` says.
        xids: state of an Xid instead of that in `XIDS`.
        tmp: file systems that need room.
        tmp_free: room that each of them needs, in GiB.
        infiniband: ports that must be active, as `mlx5_0` or `mlx5_0:1`.
        infiniband_rate: Gb/s that they need.
        pcie_width: lanes that each GPU needs; 0 for what the others have.
        diag: contexts in which `dcgmi diag` runs.
        diag_hours: least time between two of them in the health check.
        deadlines: seconds for all checks, by context.
        page: command that is given a text when something has the severity page.
        resume: whether the health check also takes the node back into use.
        resumed_hours: time for which a fault is left alone with which somebody resumed the node.
        path: where commands are.
        leftover_age: seconds for which a job may take to end.
        records: where the prolog records who has which GPU.
    """

    scripts: "frozenset[str]" = frozenset()
    skip: "frozenset[str]" = frozenset()
    severity: "Mapping[str, str]" = MappingProxyType({})
    gpus: "int | None" = None
    xids: "Mapping[int, str]" = MappingProxyType({})
    tmp: "tuple[str, ...]" = ("/tmp",)  # noqa: S108 - this is what is checked
    tmp_free: float = 1.0
    infiniband: "tuple[str, ...]" = ()
    infiniband_rate: float = 0.0
    pcie_width: int = 0
    diag: "frozenset[str]" = frozenset()
    diag_hours: float = 24.0
    deadlines: "Mapping[str, float]" = MappingProxyType(DEADLINES)
    page: str = ""
    resume: bool = False
    resumed_hours: float = 24.0
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    leftover_age: float = 300.0
    records: str = "/run/slurmkit/gpus"


# --- configuration ------------------------------------------------------------------------------


def load_conf(path: str) -> CheckSettings:
    """Load the settings. A missing file has none.

    Raises:
        BadSettings: for an unknown CHECK_ name or a value that is not allowed.
    """
    try:
        text = Path(path).read_text("utf-8", "replace")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}") from error
    values = {}
    for line in text.splitlines():
        match = re.match(r"\s*(?:export\s+)?(CHECK_\w+|RECORDS)=(.*)", line)
        if match:
            try:
                values[match.group(1)] = " ".join(shlex.split(match.group(2), comments=True))
            except ValueError as error:
                raise BadSettings(f"{path}: {line.strip()}: {error}") from error
    return parse_conf(values, path)


def parse_conf(values: "dict[str, str]", path: str = CONF_FILE) -> CheckSettings:
    """Convert the values of a configuration file.

    Raises:
        BadSettings: for an unknown name or a value that is not allowed.
    """
    found = {}  # type: dict[str, Any]
    deadlines = dict(DEADLINES)
    for name, value in values.items():
        try:
            if name in _DEADLINE_NAMES:
                deadlines[_DEADLINE_NAMES[name]] = _at_least(float(value), 0.1)
            else:
                field, parse = _PARSERS[name]
                found[field] = parse(value)
        except KeyError:
            known = ", ".join(sorted({*_PARSERS, *_DEADLINE_NAMES} - {"RECORDS"}))
            raise BadSettings(f"{path}: {name} is unknown; allowed: {known}") from None
        except ValueError as error:
            raise BadSettings(f"{path}: {name}={value}: {error}") from error
    return CheckSettings(**dict(found, deadlines=deadlines))


def _at_least(value: float, least: float) -> float:
    if value < least:
        raise ValueError(f"must be at least {least:g}")
    return value


def _names(allowed: "tuple[str, ...]") -> "Any":
    def parse(value: str) -> "frozenset[str]":
        wrong = [name for name in value.split() if name not in allowed]
        if wrong:
            known = ", ".join(allowed)
            raise ValueError(f"{wrong[0]} is not one of {known}")
        return frozenset(value.split())

    return parse


def _pairs(value: str, states: "tuple[str, ...]") -> "dict[str, str]":
    pairs = {}
    for word in value.split():
        name, equals, state = word.partition("=")
        if not equals or state not in states:
            known = "|".join(states)
            raise ValueError(f"{word} is not NAME={known}")
        pairs[name] = state
    return pairs


def _severities(value: str) -> "dict[str, str]":
    pairs = _pairs(value, SEVERITIES)
    _names(tuple(CHECKS))(" ".join(pairs))
    return pairs


def _xids(value: str) -> "dict[int, str]":
    return {int(number): state for number, state in _pairs(value, ("ok", *SEVERITIES)).items()}


def _yes_or_no(value: str) -> bool:
    if value not in {"yes", "no"}:
        raise ValueError("must be yes or no")
    return value == "yes"


_PARSERS = {
    "CHECK_IN": ("scripts", _names(("prolog", "epilog"))),
    "CHECK_SKIP": ("skip", _names(tuple(CHECKS))),
    "CHECK_SEVERITY": ("severity", _severities),
    "CHECK_GPUS": ("gpus", lambda value: int(_at_least(int(value), 0))),
    "CHECK_XIDS": ("xids", _xids),
    "CHECK_TMP": ("tmp", lambda value: tuple(value.split())),
    "CHECK_TMP_FREE": ("tmp_free", lambda value: _at_least(float(value), 0)),
    "CHECK_INFINIBAND": ("infiniband", lambda value: tuple(value.split())),
    "CHECK_INFINIBAND_RATE": ("infiniband_rate", lambda value: _at_least(float(value), 0)),
    "CHECK_PCIE_WIDTH": ("pcie_width", lambda value: int(_at_least(int(value), 0))),
    "CHECK_DIAG": ("diag", _names(("health", "epilog"))),
    "CHECK_DIAG_HOURS": ("diag_hours", lambda value: _at_least(float(value), 0)),
    "CHECK_LEFTOVER_SECONDS": ("leftover_age", lambda value: _at_least(float(value), 0)),
    "CHECK_PAGE": ("page", str),
    "CHECK_RESUME": ("resume", _yes_or_no),
    "CHECK_RESUMED_HOURS": ("resumed_hours", lambda value: _at_least(float(value), 0)),
    "CHECK_PATH": ("path", str),
    "RECORDS": ("records", str),
}  # type: dict[str, tuple[str, Any]]
_DEADLINE_NAMES = {f"CHECK_{name.upper()}_SECONDS": name for name in CONTEXTS[1:]}
