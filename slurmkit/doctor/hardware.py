"""Checks of the nodes: down or drained ones, missing GPUs, and jobs confined to their GPUs."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import cast

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from slurmkit.config.files import has_section
from slurmkit.config.plugins import load_plugin
from slurmkit.doctor.case import Check, CheckContext, CheckFinding
from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import format_time
from slurmkit.state.gpu_metrics import GpuMetricsOfNodes
from slurmkit.state.nodes import NodeRow

_LONG_OUT_SECONDS = 86400.0  # seconds
_PROMETHEUS = "prometheus"
_NO_METRICS = (
    "what GPUs there do is unknown in `report idle`, and with [gpu_use] source in the ledger",
    "compare the labels of the metrics in Prometheus with [gpu_metrics.prometheus]",
    "the site's configuration",
)
# Reasons that slurmctld and slurmd write for a node.
_GRES_REASON = re.compile(r"gres/\S+ count|gres.*(?:lower|mismatch|too (?:low|few))", re.IGNORECASE)
_PROLOG_KEY = re.compile(r"Prolog(\[\d+\])?")  # with a number from 23.11 on
_SCRIPT_REASON = re.compile(r"\b(?:prolog|epilog)\b", re.IGNORECASE)


def check_unusable_nodes(case: CheckContext) -> Iterator[CheckFinding]:
    """Check for nodes that take no jobs, by reason, the longest unavailable first."""
    unusable = [
        node
        for node in case.nodes
        if not node.usable
        # The checks below report these two reasons.
        and not (_GRES_REASON.search(node.reason) or _SCRIPT_REASON.search(node.reason))
    ]
    for (kind, reason, by), nodes in _group_by_reason(unusable).items():
        since = [node.reason_since for node in nodes if node.reason_since]
        first = min(since, default=None)
        gpus = sum(node.count("gpu") for node in nodes)
        who = f" ({by}, {format_time(first)})" if by else ""
        yield CheckFinding(
            "warning" if first is None or time.time() - first > _LONG_OUT_SECONDS else "note",
            f"{_fold_names(nodes)} {kind}: {reason or 'no reason given'}{who}",
            f"{gpus} GPUs there cannot be used" if gpus else "no job starts there",
            f"scontrol update NodeName={_fold_names(nodes)} State=RESUME, once it is repaired",
            "as a Slurm administrator",
        )


def _group_by_reason(nodes: Iterable[NodeRow]) -> dict[tuple[str, str, str], list[NodeRow]]:
    """Group nodes by kind of state, reason, and who set the reason; the oldest reason first."""
    groups: dict[tuple[str, str, str], list[NodeRow]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.reason_since or 0):
        groups[node.kind, node.reason, node.reason_by or ""].append(node)
    return groups


def _fold_names(nodes: Iterable[NodeRow]) -> str:
    """Return the names of nodes as `c[1-3]`."""
    names = NodeSet(resolver=RESOLVER_NOGROUP)
    for node in nodes:
        names.add(node.name)
    return str(names)


def check_registered_gpus(case: CheckContext) -> Iterator[CheckFinding]:
    """Check for nodes that registered with fewer GPUs than slurm.conf says; Slurm drains them."""
    for node in case.nodes:
        if _GRES_REASON.search(node.reason) or {"INVAL", "INVALID_REG"} & set(node.states):
            yield CheckFinding(
                "error",
                f"{node.name} registered fewer resources than configured: {node.reason}",
                f"its {node.count('gpu')} GPUs cannot be used",
                "run nvidia-smi on the node; then correct Gres= or gres.conf, or the node",
                f"{node.name}, or slurm.conf and gres.conf",
            )


def check_prolog_epilog(case: CheckContext) -> Iterator[CheckFinding]:
    """Check for nodes whose prolog or epilog failed; Slurm drains them and holds the job."""
    failed = [node for node in case.nodes if _SCRIPT_REASON.search(node.reason) and not node.usable]
    for (_, reason, _by), nodes in _group_by_reason(failed).items():
        yield CheckFinding("error", f"{_fold_names(nodes)}: {reason}",
                    "jobs that were sent there are back in the queue, held or started again",
                    f"repair the script ({case.config.get('Prolog') or 'Prolog, Epilog'}), then"
                    f" scontrol update NodeName={_fold_names(nodes)} State=RESUME",
                    "as a Slurm administrator")  # fmt: skip


def check_prolog_time(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that the prolog runs when a job starts, also on nodes where it has no step."""
    scripts = (value for key, value in case.config.items() if _PROLOG_KEY.fullmatch(key))
    if not case.gpu_nodes or "alloc" in case.words("PrologFlags"):
        return
    if any(value not in {"", "(null)"} for value in scripts):
        yield CheckFinding("note",
                    "PrologFlags lacks Alloc: the prolog runs on a node with the job's first step",
                    "Prometheus does not know which job holds the GPUs of a node where it runs no"
                    " step, so they never count as idle there; a ledger that reads exporters asks"
                    " slurmctld",
                    "PrologFlags=Alloc",
                    "slurm.conf, then restart slurmctld and slurmd")  # fmt: skip


def check_gpu_confinement(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that a job can reach only the GPUs it was given."""
    if not case.gpu_nodes:
        return
    cgroup = "task/cgroup" in case.words("TaskPlugin")
    if not cgroup or case.config.get("ConstrainDevices", "no").lower() != "yes":
        plugin = case.config.get("TaskPlugin") or "none"
        devices = case.config.get("ConstrainDevices") or "no"
        yield CheckFinding("warning",
                    f"TaskPlugin={plugin}, ConstrainDevices={devices}: jobs are not confined to"
                    " their GPUs",
                    "a program that ignores or changes CUDA_VISIBLE_DEVICES runs on other people's"
                    " GPUs, and the GPU map does not show it",
                    "TaskPlugin=task/cgroup,task/affinity and ConstrainDevices=yes",
                    "slurm.conf and cgroup.conf")  # fmt: skip


def check_gpu_metrics(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that the site's Prometheus has samples of the nodes with GPUs, and names their jobs.

    It is asked as the ledger asks it about runs.
    """
    if not has_section(f"gpu_metrics.{_PROMETHEUS}") or not case.gpu_nodes:
        return
    plugin = cast("type[GpuMetricsOfNodes]", load_plugin("gpu_metrics", _PROMETHEUS))
    try:
        heard = plugin().check_nodes([node.name for node in case.gpu_nodes])
    except SlurmkitError as error:
        yield CheckFinding("warning", str(error), *_NO_METRICS)
        return
    if silent := [node for node in case.gpu_nodes if node.name not in heard.nodes]:
        yield CheckFinding(
            "note", f"Prometheus has no samples of {_fold_names(silent)}", *_NO_METRICS
        )
    nameless = [
        node
        for node in case.gpu_nodes
        if node.name in heard.nodes - heard.with_jobs and any(gpus.used for gpus in node.gpus)
    ]
    if nameless:
        yield CheckFinding(
            "note",
            f"Prometheus does not say which jobs hold the GPUs of {_fold_names(nameless)}",
            "there the ledger knows only what runs did that held all GPUs of their nodes",
            "let the exporter name the jobs, or set [gpu_metrics.prometheus] job_label",
            "the exporters, or the site's configuration",
        )


CHECKS = (
    Check("nodes-out", "every node takes jobs", check_unusable_nodes),
    Check("gres-registered", "every node registered what slurm.conf says", check_registered_gpus),
    Check("prolog", "no prolog or epilog has failed", check_prolog_epilog),
    Check("prolog-alloc", "the prolog runs when a job starts", check_prolog_time),
    Check("gpu-metrics", "Prometheus has samples of every node with GPUs", check_gpu_metrics),
    Check("gpus-confined", "jobs reach only the GPUs they were given", check_gpu_confinement),
)
