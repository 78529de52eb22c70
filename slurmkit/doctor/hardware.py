"""The nodes: which are out and why, whether their GPUs are there, and kept to their jobs."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from slurmkit.doctor.case import Case
from slurmkit.doctor.model import Check, Found
from slurmkit.facts import clock
from slurmkit.nodes.read import NodeRow

_LONG = 86400.0  # seconds
# What slurmctld and slurmd write as a node's reason.
_TOO_FEW = re.compile(r"gres/\S+ count|gres.*(?:lower|mismatch|too (?:low|few))", re.IGNORECASE)
_SCRIPT = re.compile(r"\b(?:prolog|epilog)\b", re.IGNORECASE)


def out(case: Case) -> Iterator[Found]:
    """Nodes that take no jobs, by reason, those that are out for long first."""
    gone = [node for node in case.nodes if not node.usable and not _explained(node)]
    for (kind, reason, by), nodes in _grouped(gone).items():
        since = [node.reason_since for node in nodes if node.reason_since]
        first = min(since, default=None)
        gpus = sum(node.count("gpu") for node in nodes)
        who = f" ({by}, {clock(first)})" if by else ""
        yield Found(
            "warning" if first is None or time.time() - first > _LONG else "note",
            f"{_folded(nodes)} {kind}: {reason or 'no reason given'}{who}",
            f"{gpus} GPUs there cannot be used" if gpus else "no job starts there",
            f"scontrol update NodeName={_folded(nodes)} State=RESUME, once it is mended",
            "as a Slurm administrator",
        )


def _explained(node: NodeRow) -> bool:
    return bool(_TOO_FEW.search(node.reason) or _SCRIPT.search(node.reason))


def _grouped(nodes: Iterable[NodeRow]) -> dict[tuple[str, str, str], list[NodeRow]]:
    groups: dict[tuple[str, str, str], list[NodeRow]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.reason_since or 0):
        groups[node.kind, node.reason, node.reason_by or ""].append(node)
    return groups


def _folded(nodes: Iterable[NodeRow]) -> str:
    names = NodeSet(resolver=RESOLVER_NOGROUP)
    for node in nodes:
        names.add(node.name)
    return str(names)


def registered(case: Case) -> Iterator[Found]:
    """Nodes that came up with fewer GPUs than slurm.conf says; Slurm drains them."""
    for node in case.nodes:
        if _TOO_FEW.search(node.reason) or {"INVAL", "INVALID_REG"} & set(node.states):
            yield Found("error", f"{node.name} registered with less than configured: {node.reason}",
                        f"its {node.count('gpu')} GPUs cannot be used",
                        "nvidia-smi on the node; then Gres= or gres.conf as they are",
                        f"{node.name}, or slurm.conf and gres.conf")  # fmt: skip


def scripts(case: Case) -> Iterator[Found]:
    """Nodes whose prolog or epilog failed; Slurm drains them, and holds the job."""
    failed = [node for node in case.nodes if _SCRIPT.search(node.reason) and not node.usable]
    for (_, reason, _by), nodes in _grouped(failed).items():
        yield Found("error", f"{_folded(nodes)}: {reason}",
                    "jobs that were sent there are back in the queue, held or started again",
                    f"mend the script ({case.config.get('Prolog') or 'Prolog, Epilog'}), then"
                    f" scontrol update NodeName={_folded(nodes)} State=RESUME",
                    "as a Slurm administrator")  # fmt: skip


def confined(case: Case) -> Iterator[Found]:
    """Whether a job can reach only the GPUs it was given."""
    if not case.gpu_nodes:
        return
    cgroup = "task/cgroup" in case.words("TaskPlugin")
    if not cgroup or case.config.get("ConstrainDevices", "no").lower() != "yes":
        plugin = case.config.get("TaskPlugin") or "none"
        devices = case.config.get("ConstrainDevices") or "no"
        yield Found("warning",
                    f"TaskPlugin={plugin}, ConstrainDevices={devices}: jobs are not confined to"
                    " their GPUs",
                    "a program that ignores or changes CUDA_VISIBLE_DEVICES runs on other people's"
                    " GPUs, and the map does not show it",
                    "TaskPlugin=task/cgroup,task/affinity and ConstrainDevices=yes",
                    "slurm.conf and cgroup.conf")  # fmt: skip


CHECKS = (
    Check("nodes-out", "every node takes jobs", out),
    Check("gres-registered", "every node registered what slurm.conf says", registered),
    Check("prolog", "no prolog or epilog has failed", scripts),
    Check("gpus-confined", "jobs reach only the GPUs they were given", confined),
)
