"""What partitions allow, who may use them, and several partitions at once."""

from __future__ import annotations

from typing import Any

import pytest
from checked_requests import (
    errors,
    findings,
    fixed,
    replace,
    request,
    with_config,
    with_partition,
    with_qos,
    with_settings,
)
from recorded_lab import capabilities, standing

from slurmkit.planning.checks.fixes import request_builder
from slurmkit.planning.checks.registry import check, check_each, findings_on_all
from slurmkit.spec.gpus import Gpus
from slurmkit.state.model import Capabilities, Limits

Fix = tuple[tuple[str, str], ...]


@pytest.mark.parametrize(
    ("fields", "spec", "code", "fix"),
    [
        ({"max_time": 60}, {"time": "2:00:00"}, "max-time", (("time", "1:00:00"),)),
        ({"max_nodes": 1}, {"nodes": 3}, "max-nodes", (("nodes", "1"),)),
        ({"min_nodes": 2}, {"nodes": 1}, "min-nodes", (("nodes", "2"),)),
        (
            {"max_cpus_per_node": 8},
            {"cpus_per_task": 16},
            "max-cpus-per-node",
            (("cpus-per-task", "8"),),
        ),
        ({"max_mem_per_node": 8192}, {"mem": "16G"}, "max-mem-per-node", (("mem", "8G"),)),
        ({"max_mem_per_node": 8192}, {"mem": "0"}, "max-mem-per-node", (("mem", "8G"),)),
        ({"state": "DRAIN"}, {}, "state", (("partition", "cpu"),)),
        ({"state": "INACTIVE"}, {"gpus": Gpus(1)}, "state", (("partition", "untyped"),)),
        ({"allow_accounts": ("genomics",)}, {}, "allow-accounts", (("partition", "cpu"),)),
        ({"deny_accounts": ("vision",)}, {}, "deny-accounts", (("partition", "cpu"),)),
        ({"allow_qos": ("high",)}, {}, "allow-qos", (("qos", "high"),)),
        ({"deny_qos": ("normal",)}, {}, "deny-qos", (("qos", "high"),)),
        ({"allow_groups": ("genomics",)}, {}, "allow-groups", (("partition", "cpu"),)),
    ],
)
def test_what_a_partition_does_not_allow(
    fields: dict[str, Any], spec: dict[str, Any], code: str, fix: Fix
) -> None:
    known = with_partition("gpu", **fields)
    (finding,) = [f for f in findings(known, **spec).values() if f.severity == "error"]
    assert finding.code == f"partition-{code}"
    assert "partition gpu" in finding.message
    assert finding.fix == fix
    assert not [f for f in fixed(request(known, **spec), finding) if f.severity == "error"]
    assert not errors(findings(**spec)), "without the limit there is nothing to say"


@pytest.mark.parametrize(
    ("enforces", "fate"),
    [("NO", "it would pend for ever"), ("ANY", "sbatch would refuse it"), ("ALL", "refuse it")],
)
def test_what_slurm_would_do_depends_on_enforcepartlimits(enforces: str, fate: str) -> None:
    known = with_config(with_partition("gpu", max_time=60), EnforcePartLimits=enforces)
    assert fate in findings(known, time="2:00:00")["partition-max-time"].message


def test_a_least_time_that_fits_may_start() -> None:
    known = with_partition("gpu", max_time=60)
    assert not findings(known, time="2:00:00", time_min="30")
    assert errors(findings(known, time="3:00:00", time_min="2:00:00"))


@pytest.mark.parametrize(
    ("flag", "fields", "spec"),
    [
        ("PartitionTimeLimit", {"max_time": 60}, {"time": "2:00:00"}),
        ("PartitionMaxNodes", {"max_nodes": 1}, {"nodes": 2}),
        ("PartitionMinNodes", {"min_nodes": 2}, {"nodes": 1}),
    ],
)
def test_a_qos_may_override_a_partition(
    flag: str, fields: dict[str, Any], spec: dict[str, Any]
) -> None:
    known = with_partition("gpu", **fields)
    assert errors(findings(known, qos="high", **spec))
    assert not findings(known, with_qos("high", flags=(flag,)), qos="high", **spec)


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ({"RootOnly": "YES"}, "partition-root-only"),
        ({"ReqResv": "YES"}, "partition-needs-reservation"),
        ({"AllocNodes": "gate[1-2]"}, "partition-alloc-nodes"),
    ],
)
def test_closed_doors(setting: dict[str, str], code: str) -> None:
    (finding,) = findings(with_settings("gpu", **setting)).values()
    assert (finding.code, finding.severity) == (code, "error")
    assert finding.fix == (("partition", "cpu"),)


def test_jobs_from_an_allowed_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit.slurm.machine.LocalMachine.name", "gate2")
    assert not findings(with_settings("gpu", AllocNodes="gate[1-2]"))


def test_root_where_root_may_not() -> None:
    root = replace(standing(), user="root")
    known = with_settings("gpu", DisableRootJobs="YES")
    assert "partition-no-root" in findings(known, root)
    assert "partition-allow-groups" not in findings(
        with_partition("gpu", allow_groups=("genomics",)), root
    )


def test_a_partition_that_is_down_takes_jobs() -> None:
    (finding,) = findings(with_partition("gpu", state="DOWN")).values()
    assert (finding.severity, finding.code) == ("warning", "partition-state")


def test_an_alternate_takes_the_jobs_of_a_drained_partition() -> None:
    known = with_settings("gpu", Alternate="cpu")
    (finding,) = findings(with_partition("gpu", known, state="DRAIN")).values()
    assert (finding.severity, finding.fix) == ("warning", (("partition", "cpu"),))


def test_slurm_raises_the_nodes_of_a_job_that_left_them_open() -> None:
    known = with_partition("gpu", min_nodes=2)
    assert not findings(known, ntasks=2)
    assert errors(findings(known, ntasks=2, nodes=1)) == ["partition-min-nodes"]


def test_the_most_of_a_range_is_compared_with_maxnodes() -> None:
    """`-N 1-2` with MaxNodes=1 pends for ever (PartitionNodeLimit)."""
    known = with_partition("gpu", max_nodes=1)
    asked = request(known, nodes="1-2")
    (finding,) = [f for f in check(asked) if f.severity == "error"]
    assert (finding.code, finding.fix) == ("partition-max-nodes", (("nodes", "1"),))
    assert "asks for up to 2 nodes; partition gpu allows one job 1 (MaxNodes)" in finding.message
    assert not errors(findings(known, nodes="1-2", ntasks=1)), "sbatch takes 2 nodes down to 1"
    two = with_partition("gpu", max_nodes=2)
    assert findings(two, nodes="1-3")["partition-max-nodes"].fix == (("nodes", "1-2"),)
    assert not errors(findings(two, nodes="1-2"))


def test_the_least_of_a_range_is_raised_to_minnodes_only_where_limits_are_not_enforced() -> None:
    """`_part_access_check` comes before it is raised."""
    known = with_partition("gpu", min_nodes=2)
    assert request(known, nodes="1-4").total["node"] == 2
    enforced = with_config(known, EnforcePartLimits="ANY")
    finding = findings(enforced, nodes="1-4")["partition-min-nodes"]
    assert finding.fix == (("nodes", "2-4"),)
    counted = {"ntasks": 4, "ntasks_per_node": 4}  # sbatch asks for 1 node
    assert not errors(findings(known, **counted))
    assert errors(findings(enforced, **counted)) == ["partition-min-nodes"]
    old = with_partition("gpu", capabilities("22.05"), min_nodes=2)
    assert not errors(findings(with_config(old, EnforcePartLimits="ANY"), **counted))


def test_without_a_number_a_job_gets_minnodes() -> None:
    """sbatch runs it on MinNodes nodes, so that many are promised."""
    known = with_partition("gpu", min_nodes=2)
    for spec in ({}, {"ntasks": 2}, {"ntasks": 1}, {"gpus": Gpus(1, "a100"), "ntasks": 1}):
        asked = request(known, **spec)
        assert not [f for f in check(asked) if f.severity == "error"]
        assert (asked.nodes, asked.total["node"], asked.total["cpu"]) == (2, 2, 2)
    assert errors(findings(known, nodes=1)) == ["partition-min-nodes"]


def test_a_range_of_nodes_is_judged_by_its_least() -> None:
    assert errors(findings(with_partition("gpu", max_nodes=1), nodes="2-4"))
    assert not errors(findings(with_partition("gpu", min_nodes=2), nodes="1-4"))
    assert errors(findings(with_partition("gpu", min_nodes=3), nodes="1-2"))
    assert not errors(findings(nodes="2-400", gpus=Gpus(8, "a100")))
    assert "node-count" in findings(nodes="40-400", gpus=Gpus(8, "a100"))


def test_no_memory_asked_for_and_no_default_is_all_of_a_node() -> None:
    known = with_config(with_partition("gpu", max_mem_per_node=8192), DefMemPerCPU="UNLIMITED")
    found = findings(known)
    assert "asks for all memory of its nodes" in found["partition-max-mem-per-node"].message
    roomy = with_config(with_partition("gpu", max_mem_per_node=999_999), DefMemPerCPU="UNLIMITED")
    assert not errors(findings(roomy))


def test_accounts_above_count_on_newer_releases_only() -> None:
    new, old = capabilities("24.11"), capabilities("22.05")
    assert not errors(findings(with_partition("gpu", new, allow_accounts=("root",))))
    assert errors(findings(with_partition("gpu", old, allow_accounts=("root",))))


def test_memory_per_cpu_is_paid_for_with_cpus() -> None:
    known = with_partition("gpu", max_mem_per_cpu=2048)
    (finding,) = findings(known, mem_per_cpu="8G").values()
    assert (finding.severity, finding.code) == ("note", "partition-max-mem-per-cpu")
    assert "the job gets 4 CPUs there instead of 1" in finding.message
    (finding,) = findings(known, mem="200G").values()
    assert finding.severity == "error"
    assert finding.fix == (("mem", "128G"),)


def test_cpus_for_memory_are_promised_and_must_be_there() -> None:
    """MaxMemPerCPU raises CPUs, evenly over the tasks from 24.11 on."""
    known = with_partition("gpu", max_mem_per_cpu=2048)
    assert request(known, cpus_per_task=3, mem="20G").most["cpu"] == 10
    assert request(known, nodes=1, ntasks=3, mem="100G").most["cpu"] == 51
    assert request(known, nodes=1, ntasks=3, mem_per_cpu="5G").most["cpu"] == 9
    finding = findings(known, nodes=1, ntasks=3, mem="128G")["partition-max-mem-per-cpu"]
    assert (finding.severity, finding.fix) == ("error", (("mem", "126G"),))
    assert "the job gets 66 CPUs there instead of 3" in finding.message
    old = with_partition("gpu", capabilities("22.05"), max_mem_per_cpu=2048)
    assert request(old, nodes=1, ntasks=3, mem="100G").most["cpu"] == 50
    assert not errors(findings(old, nodes=1, ntasks=3, mem="128G"))
    all_of_it = findings(known, mem="0")["partition-max-mem-per-cpu"]
    assert (all_of_it.severity, all_of_it.fix) == ("error", (("mem", "128G"),))


def test_a_partitions_limit_of_one_kind_hides_the_clusters_of_the_other() -> None:
    """`max_mem_per_cpu` of a partition holds either of the two."""
    known = with_config(with_partition("gpu", max_mem_per_node=8192), MaxMemPerCPU="1024")
    found = findings(known, mem="16G")
    assert errors(found) == ["partition-max-mem-per-node"]
    assert "partition-max-mem-per-cpu" not in found


def test_whole_nodes_with_more_cpus_than_the_partition_allows() -> None:
    """Such a job never starts."""
    known = with_partition("gpu", max_cpus_per_node=32)
    finding = findings(known, exclusive=True)["partition-max-cpus-per-node"]
    assert (finding.severity, finding.fix) == ("error", (("exclusive", ""),))
    assert "takes all 64 CPUs of a node" in finding.message
    assert not errors(findings(known))


def test_limits_of_the_whole_cluster_where_a_partition_has_none() -> None:
    (finding,) = findings(with_config(MaxMemPerNode="8192"), mem="16G").values()
    assert finding.source == "slurm.conf: MaxMemPerNode=8192M"


# --- several partitions ---------------------------------------------------------------------------


def in_each(known: Capabilities, where: Any = None, **spec: Any) -> Any:
    first = request(known, where, **spec)
    names = spec["partition"].split(",")
    others = [
        request_builder(replace(first, partition=known.partition(name)))(()) for name in names[1:]
    ]
    return findings_on_all(check_each((first, *others)))


def test_beside_one_that_fits_an_error_is_a_warning() -> None:
    known = with_partition("cpu", max_time=60)
    (finding,) = in_each(known, time="2:00:00", partition="cpu,gpu")
    assert (finding.severity, finding.code) == ("warning", "partition-max-time")
    assert finding.message.startswith("not in partition cpu: asks for 2:00:00")
    assert finding.fix == (("partition", "gpu"),)


def test_where_none_fits_all_errors_stay() -> None:
    known = with_partition("cpu", with_partition("gpu", max_time=60), max_time=90)
    found = in_each(known, time="2:00:00", partition="cpu,gpu")
    assert [f.severity for f in found] == ["error", "error"]


@pytest.mark.parametrize(
    ("enforces", "severity"), [("NO", "warning"), ("ANY", "warning"), ("ALL", "error")]
)
def test_with_all_one_misfit_refuses_the_job(enforces: str, severity: str) -> None:
    known = with_config(with_partition("cpu", max_time=60), EnforcePartLimits=enforces)
    (finding,) = in_each(known, time="2:00:00", partition="cpu,gpu")
    assert finding.severity == severity
    assert finding.fix == (("partition", "gpu"),)


def test_a_closed_door_among_several_keeps_the_job_from_starting() -> None:
    known = with_settings("cpu", RootOnly="YES")
    (finding,) = in_each(known, partition="cpu,gpu")
    assert (finding.severity, finding.fix) == ("error", (("partition", "gpu"),))


@pytest.mark.parametrize(("flags", "severity"), [((), "warning"), (("DenyOnLimit",), "error")])
def test_the_qos_of_one_of_several_partitions(flags: tuple[str, ...], severity: str) -> None:
    known = with_partition("cpu", qos="part")
    where = with_qos("part", limits=Limits(max_wall=60), flags=flags)
    (finding,) = in_each(known, where, time="2:00:00", partition="cpu,gpu")
    assert (finding.severity, finding.code) == (severity, "qos-max-wall")


def test_what_all_partitions_say_is_said_once() -> None:
    found = in_each(capabilities(), partition="cpu,gpu", qos="nope")
    assert [f.code for f in found] == ["no-qos"]


def test_one_partition_is_as_check_says() -> None:
    known = with_partition("gpu", max_time=60)
    asked = request(known, time="2:00:00")
    assert findings_on_all(check_each((asked,))) == check(asked)


def test_the_least_time_is_at_most_the_time_limit() -> None:
    """Differential test, F."""
    asked = request(time="1:00:00", time_min="2:00:00")
    (finding,) = check(asked)
    assert (finding.code, finding.severity) == ("time-min", "error")
    assert not fixed(asked, finding)
    assert not findings(time="1:00:00", time_min="1:00:00")
    assert not findings(time="0:30", time_min="0:40"), "Slurm counts minutes"
