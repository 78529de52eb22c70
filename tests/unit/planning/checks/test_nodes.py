"""Node shapes, features, nodes by name, reservations and licences."""

from __future__ import annotations

from typing import Any

import pytest
from checked_requests import (
    NOW,
    errors,
    findings,
    fixed,
    only,
    replace,
    request,
    with_config,
    with_nodes,
    with_partition,
    with_settings,
)
from recorded_lab import RELEASES, capabilities, standing

from slurmkit.planning.checks import access
from slurmkit.planning.checks.registry import check
from slurmkit.spec.gpus import Gpus
from slurmkit.state.model import Capabilities, Reservation

# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "code", "says", "fix"),
    [
        ({"mem": "600G"}, "node-shape", "more than 500 GiB of memory", "--mem=500G"),
        ({"cpus_per_task": 65}, "node-shape", "more than 64 CPUs", "--cpus-per-task=64"),
        ({"ntasks_per_node": 99}, "node-shape", "64 CPUs", "--ntasks-per-node=64"),
        ({"gpus": Gpus(8, "a100"), "mem": "600G"}, "node-shape", "500 GiB", "--mem=500G"),
        ({"nodes": 4}, "node-count", "partition gpu has 3", "--nodes=3"),
        (
            {"nodes": 4, "gpus": Gpus(4, "a100")},
            "node-count",
            "has 2",
            "--nodes=2 --gpus-per-node=a100:8",
        ),
        ({"nodes": 3, "gpus": Gpus(8, "a100")}, "node-count", "has 2", "--nodes=2"),
        ({"tmp": "10G"}, "node-shape", "10 GiB of local disk", ""),
    ],
)
def test_what_no_node_has(spec: dict[str, Any], code: str, says: str, fix: str) -> None:
    asked = request(**spec)
    (finding,) = [f for f in check(asked) if f.severity == "error"]
    assert finding.code == code
    assert says in finding.message
    assert finding.fix_words == fix
    if fix:
        assert not [f for f in fixed(asked, finding) if f.severity == "error"]


def test_several_nodes_may_have_different_gpus_where_no_type_is_named() -> None:
    finding = findings(nodes=2, gpus=Gpus(2))["gpu-types-mixed"]
    assert "partition gpu has a100, h100; name a type, e.g. a100:2" in finding.message
    assert "gpu-types-mixed" not in findings(nodes=2, gpus=Gpus(2, "a100"))
    assert "gpu-types-mixed" not in findings(nodes=1, gpus=Gpus(2))
    assert "gpu-types-mixed" not in findings(nodes=2, gpus=Gpus(2), nodelist="c[1-2]")
    assert "gpu-types-mixed" not in findings(nodes=2, gpus=Gpus(8))  # only a100 nodes have so many
    assert "gpu-types-mixed" not in findings(nodes=2, gpus=Gpus(1, mig="1g.5gb"), partition="mig")


def test_gpus_that_no_node_left_has() -> None:
    """No node at all was no finding, so the partition `fits`."""
    finding = findings(gpus=Gpus(1, "h100"), exclude="c3")["node-shape"]
    assert (finding.severity, finding.fix) == ("error", (("exclude", ""),))
    assert "no node of partition gpu that --exclude=c3 leaves has 1 h100 GPU" in finding.message
    asked = request(gpus=Gpus(1, "h100"), partition="cpu,gpu")
    assert errors({f.code: f for f in check(asked)}) == ["node-shape"]
    known = with_nodes(["c1", "c2"], features=("nvlink",))
    apart = findings(known, constraint="nvlink", exclude="c[1-2]")
    assert not findings(known, constraint="nvlink")
    assert apart["node-shape"].message.startswith("there is no node of partition gpu that")


def test_a_node_must_have_room_for_all_tasks_of_ntasks_per_node() -> None:
    """The number is the most, but a node must have CPUs for it."""
    finding = findings(ntasks=2, ntasks_per_node=65)["node-shape"]
    assert finding.fix == (("ntasks-per-node", "64"),)
    assert not errors(findings(nodes=1, ntasks=16, ntasks_per_node=64))
    assert errors(findings(ntasks=1, ntasks_per_node=65)) == ["node-shape"]
    each = {"ntasks": 4, "cpus_per_task": 16, "gpus": Gpus(1, "h100", "task")}
    assert not errors(findings(ntasks_per_node=8, **each)), "the script asks for 4 on the node"


def test_tasks_on_sockets() -> None:
    """A node takes sockets times `--ntasks-per-socket` tasks."""
    finding = findings(nodes=1, ntasks=4, ntasks_per_socket=1)["tasks-per-socket"]
    assert (finding.severity, finding.fix) == ("error", (("ntasks-per-socket", "2"),))
    assert not errors(findings(nodes=1, ntasks=2, ntasks_per_socket=1))
    assert not errors(findings(ntasks=4, ntasks_per_socket=1))
    assert request(ntasks=4, ntasks_per_socket=1).nodes == 2


@pytest.mark.parametrize(
    "spec", [{"threads_per_core": 2}, {"sockets_per_node": 3}, {"cores_per_socket": 33}]
)
def test_processors_that_no_node_has(spec: dict[str, int]) -> None:
    """slurmctld finds no such node, and the job never starts."""
    finding = findings(ntasks=1, **spec)["node-shape"]
    assert (finding.severity, "no node of partition gpu" in finding.message) == ("error", True)


def test_counted_features_need_their_nodes() -> None:
    """`[amd*1&intel*1]` on one node never starts."""
    known = with_nodes(["c1"], features=("amd",))
    known = replace(
        known,
        nodes=tuple(replace(n, features=("intel",)) if n.name == "c2" else n for n in known.nodes),
    )
    finding = findings(known, constraint="[amd*1&intel*1]")["constraint-count"]
    assert (finding.severity, finding.fix) == ("error", (("nodes", "2"),))
    assert not errors(findings(known, constraint="[amd*1&intel*1]", nodes=2))


def test_features_preferred_that_no_node_has() -> None:
    """sbatch tests the job with `--prefer`, and refuses it."""
    prefer = {"options": {"prefer": "avx1024"}}
    finding = findings(**prefer)["prefer"]
    assert (finding.severity, finding.fix) == ("error", (("prefer", ""),))
    assert not errors(findings(with_nodes(["c1"], features=("avx1024",)), **prefer))
    assert not errors(
        findings(with_config(SchedulerParameters="ignore_prefer_validation"), **prefer)
    )


def test_memory_per_cpu_of_an_exclusive_job_is_that_of_all_its_cpus() -> None:
    asked = request(mem_per_cpu="10G", exclusive=True)
    (finding,) = [f for f in check(asked) if f.severity == "error"]
    assert "asks for 640 GiB of memory on a node" in finding.message
    assert finding.fix_words == "--mem-per-cpu=7G"
    assert not [f for f in fixed(asked, finding) if f.severity == "error"]


@pytest.mark.parametrize("release", RELEASES)
def test_a_node_must_have_the_cpus_of_its_most_tasks(release: str) -> None:
    """Also with --overcommit: `_can_job_run_on_node` in cons_tres/job_test.c."""
    known = capabilities(release)
    assert errors(findings(known, ntasks_per_node=99)) == ["node-shape"]
    assert errors(findings(known, ntasks_per_node=99, overcommit=True)) == ["node-shape"]
    assert not errors(findings(known, ntasks_per_node=64, overcommit=True))


def test_each_fits_alone_but_no_node_has_both() -> None:
    """Eight GPUs stand in nodes of little memory; much memory in one of four GPUs."""
    known = with_nodes(["c1", "c2"], memory=200 * 1024)
    found = findings(known, gpus=Gpus(5), mem="300G")
    finding = found["node-shape"]
    assert "has all of this at once: 1 CPU, 5 GPUs, 300 GiB of memory" in finding.message
    assert finding.fix == (("gpus-per-node", "4"),)
    assert not errors(findings(known, gpus=Gpus(5), mem="100G"))
    assert not errors(findings(known, gpus=Gpus(4), mem="300G"))


def test_a_node_that_fits_but_is_down_is_waited_for() -> None:
    known = with_nodes(["c1"], states=("DOWN",), reason="broken fan\x1b[2J")
    finding = findings(known, gpus=Gpus(8, "a100"), nodes=2)["nodes-down"]
    assert finding.severity == "warning"
    assert "only 1 of the 2 nodes that fit" in finding.message
    assert "c1 DOWN (broken fan\\x1b[2J)" in finding.message
    assert not findings(known, gpus=Gpus(8, "a100"))


def test_all_of_a_nodes_memory() -> None:
    finding = only(findings(mem="0"))
    assert (finding.severity, finding.code) == ("note", "mem-all")
    assert "at least 500 GiB" in finding.message


def test_without_a_default_a_job_takes_all_memory() -> None:
    bare = with_partition("gpu", def_mem_per_cpu=None, def_mem_per_node=None)
    known = with_config(bare, DefMemPerCPU="UNLIMITED", SelectTypeParameters="CR_CORE_MEMORY")
    finding = only(findings(known))
    assert (finding.severity, finding.code) == ("warning", "mem-all")
    assert not findings(known, mem="1G")
    assert not findings(with_config(known, SelectTypeParameters="CR_CORE"))


def test_shards_are_counted_as_shards() -> None:
    assert not errors(findings(gpus=Gpus(shard=4)))
    found = findings(with_partition("gpu", max_nodes=1), gpus=Gpus(shard=4), nodes=1)
    assert not errors(found)


# --- features -------------------------------------------------------------------------------------


def featured() -> Capabilities:
    return replace(
        capabilities(),
        nodes=tuple(
            replace(n, features=("ib", "gold") if n.name == "c1" else ("ib", "silver"))
            for n in capabilities().nodes
        ),
    )


def test_an_unknown_feature_has_a_nearest_one() -> None:
    finding = only(findings(featured(), constraint="ib&goold"))
    assert finding.code == "no-feature"
    assert finding.fix == (("constraint", "ib&gold"),)


def test_a_feature_where_no_node_has_any() -> None:
    finding = only(findings(constraint="ib"))
    assert finding.fix_words == "no --constraint"


def test_a_feature_that_a_reboot_may_bring() -> None:
    known = with_config(featured(), NodeFeaturesPlugins="node_features/helpers")
    assert only(findings(known, constraint="diamond")).severity == "warning"


def test_a_combination_no_node_has() -> None:
    assert only(findings(featured(), constraint="gold&silver")).code == "constraint"
    assert only(findings(featured(), constraint="gold", partition="cpu")).fix == (
        ("partition", "gpu"),
    )


def test_features_choose_the_nodes_that_must_be_enough() -> None:
    assert errors(findings(featured(), constraint="gold", nodes=2)) == ["node-count"]
    assert not findings(featured(), constraint="silver", nodes=2)


def test_counts_of_features_must_be_there() -> None:
    assert not findings(featured(), constraint="gold*1", nodes=2)
    assert not findings(featured(), constraint="[gold*1&silver*2]", nodes=3)
    found = only(findings(featured(), constraint="[gold*2&silver*1]", nodes=3))
    assert found.code == "constraint-count"
    assert "2 nodes must have gold; partition gpu has 1" in found.message
    assert errors(findings(featured(), constraint="[gold|silver]", nodes=3)) == ["constraint-count"]
    assert not findings(featured(), constraint="[gold|silver]", nodes=2)


def test_there_is_no_not() -> None:
    assert "Slurm has no NOT" in only(findings(featured(), constraint="!gold")).message


# --- nodes by name --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "code", "fix"),
    [
        ({"nodelist": "c1,c9"}, "no-node", "--nodelist=c1"),
        ({"exclude": "c9"}, "no-node", "no --exclude"),
        ({"nodelist": "c[1-2],c7", "nodes": 3}, "node-elsewhere", "--nodelist='c[1-2]'"),
        ({"nodelist": "c7"}, "node-elsewhere", "no --nodelist"),
        ({"nodelist": "c1", "exclude": "c[1-2]"}, "node-both-ways", "--exclude=c2"),
        ({"exclude": "c[1-3]"}, "node-all-excluded", "no --exclude"),
    ],
)
def test_nodes_by_name(spec: dict[str, Any], code: str, fix: str) -> None:
    finding = findings(**spec)[code]
    assert finding.severity == "error"
    assert finding.fix_words == fix


def test_of_a_longer_list_slurm_takes_what_it_needs() -> None:
    assert not findings(nodelist="c[1-2],c7", nodes=1)
    old = findings(capabilities("22.05"), nodelist="c[1-2],c7", nodes=1)
    assert old["node-list-long"].fix_words == "--nodelist=c1"


def test_a_named_node_must_have_what_is_asked_for() -> None:
    assert errors(findings(nodelist="c3", gpus=Gpus(2, "a100"))) == ["node-shape"]
    assert not findings(nodelist="c1", gpus=Gpus(2, "a100"))


# --- reservations ---------------------------------------------------------------------------------


def reserved(**fields: Any) -> Any:
    made = Reservation(
        **{
            "name": "course",
            "start": NOW - 60,
            "end": NOW + 3600,
            "nodes": ("c1", "c2"),
            "users": ("alice",),
            **fields,
        }
    )
    return replace(standing(), reservations=(made,))


@pytest.mark.parametrize(
    ("fields", "spec", "code", "fix"),
    [
        ({"name": "other"}, {}, "no-reservation", "no --reservation"),
        ({"end": NOW - 5}, {}, "reservation-over", "no --reservation"),
        ({"users": ("bob",)}, {}, "reservation-access", "no --reservation"),
        ({"accounts": ("-vision",)}, {}, "reservation-access", "no --reservation"),
        ({}, {"nodes": 3}, "reservation-nodes", "--nodes=2"),
        ({}, {"partition": "cpu"}, "reservation-nodes", "--partition=gpu"),
    ],
)
def test_a_reservation_that_cannot_be_used(
    fields: dict[str, Any], spec: dict[str, Any], code: str, fix: str
) -> None:
    asked = request(where=reserved(**fields), reservation="course", **spec)
    (finding,) = [f for f in check(asked) if f.severity == "error"]
    assert finding.code == code
    assert finding.fix_words == fix
    assert not [f for f in fixed(asked, finding) if f.severity == "error"]


@pytest.mark.parametrize(
    ("names", "code", "fix"),
    [
        ("unknown,course", "no-reservation", "--reservation=course"),
        ("course,unknown", "no-reservation", "--reservation=course"),
        ("course,course", None, ""),
    ],
)
def test_of_several_reservations_each_must_be_there(names: str, code: str | None, fix: str) -> None:
    asked = request(where=reserved(), reservation=names)
    found = list(access.requested_reservation(asked))
    assert [(each.code, each.fix_words) for each in found] == ([(code, fix)] if code else [])


def test_of_several_reservations_each_must_be_allowed() -> None:
    asked = request(where=reserved(users=("bob",)), reservation="course,gone")
    found = list(access.requested_reservation(asked))
    assert [each.code for each in found] == ["reservation-access", "no-reservation"]


@pytest.mark.parametrize("flags", [(), ("FLEX",)])
def test_a_reservation_kills_its_jobs_when_it_ends(flags: tuple[str, ...]) -> None:
    found = findings(where=reserved(flags=flags), reservation="course", time="2:00:00")
    if flags:
        assert not found
    else:
        assert only(found).fix == (("time", "1:00:00"),)


def test_maintenance_on_all_nodes_that_fit_is_waited_for() -> None:
    where = reserved(
        name="maint", nodes=("c1", "c2", "c3"), users=("root",), start=NOW + 1800, flags=("MAINT",)
    )
    finding = only(findings(where=where, time="1:00:00"))
    assert (finding.severity, finding.code) == ("note", "reservation-in-the-way")
    assert finding.fix == (("time", "28:00"),), "it is sent a while from now"
    assert not findings(where=where, time="30"), "it ends before"
    assert not findings(where=where, time="1:00:00", partition="cpu")
    assert findings(where=where, time="1:00:00", gpus=Gpus(1, "h100"))


def test_a_reservation_of_some_nodes_is_in_nobodys_way() -> None:
    where = reserved(users=("root",))
    assert not findings(where=where, time="1:00:00")
    assert only(findings(where=where, time="1:00:00", nodes=2)).code == "reservation-in-the-way"


# --- licences -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("licenses", "code", "fix"),
    [
        ("matlab:5", "licenses", "--licenses=matlab:2"),
        ("matlab:1,anys:1", "no-license", "--licenses=matlab:1"),
        ("anys", "no-license", "no --licenses"),
        ("matlab:2", None, ""),
        ("matlab:9|ansys:1", None, ""),
        ("matlab:9|ansys:9", "licenses", ""),
    ],
)
def test_licences(licenses: str, code: str | None, fix: str) -> None:
    known = replace(capabilities(), licenses={"matlab": 2, "ansys": 1})
    found = findings(known, licenses=licenses)
    assert errors(found) == ([code] if code else [])
    if fix:
        assert only(found).fix_words == fix


def test_licences_that_could_not_be_read() -> None:
    known = replace(capabilities(), hidden=("licences: scontrol failed",))
    assert only(findings(known, licenses="matlab")).code == "unknown-licenses"


def test_every_node_of_a_nodelist_must_be_in_the_partition() -> None:
    """Differential test, A: without --nodes Slurm does not choose of them."""
    assert request(nodelist="c[1-2]", ntasks=8).nodes == 2
    assert request(nodelist="c[1-2]", ntasks=1).nodes == 1
    here = {node.name for node in capabilities().nodes_of("gpu")}
    away = next(node.name for node in capabilities().nodes if node.name not in here)
    assert errors(findings(nodelist=f"c1,{away}")) == ["node-elsewhere"]
    assert not errors(findings(nodelist=f"c1,{away}", nodes=1))


def test_a_node_must_have_room_for_more_tasks_than_the_job_has() -> None:
    """Differential test, D."""
    for cpus in (2, 48):
        found = findings(ntasks=1, ntasks_per_node=64, cpus_per_task=cpus)
        assert errors(found) == ["node-shape"]
    assert errors(findings(nodes=3, ntasks=1, ntasks_per_node=3, cpus_per_task=31)) == [
        "node-shape"
    ]
    assert not errors(findings(ntasks=1, ntasks_per_node=2, cpus_per_task=32))
    few = with_partition("gpu", max_cpus_per_node=8)
    found = findings(few, ntasks=3, ntasks_per_node=32, cpus_per_task=2)
    assert errors(found) == ["partition-max-cpus-per-node"]


def test_each_named_node_must_have_what_is_asked_for() -> None:
    """Differential test, E: Slurm adds nodes to a short list, and takes all of it."""
    asked = request(nodes=2, nodelist="c3", gpus=Gpus(1, "a100"))
    (finding,) = [f for f in check(asked) if f.severity == "error"]
    assert (finding.code, finding.fix) == ("node-shape", (("nodelist", ""),))
    assert "--nodelist names c3, which does not have 1 a100 GPU" in finding.message
    assert not errors({f.code: f for f in fixed(asked, finding)})
    assert not errors(findings(nodes=2, nodelist="c1", gpus=Gpus(1, "a100")))
    assert not errors(findings(nodes=1, nodelist="c[1,3]", gpus=Gpus(1, "a100")))


@pytest.mark.parametrize("gpus", [Gpus(shard=1), Gpus(fraction=0.5)])
def test_parts_of_gpus_on_whole_nodes_never_start(gpus: Gpus) -> None:
    """Differential test, B."""
    asked = request(gpus=gpus, exclusive=True)
    found = {f.code: f for f in check(asked)}["parts-on-whole-nodes"]
    assert (found.severity, found.fix) == ("error", (("exclusive", ""),))
    known = with_settings("gpu", OverSubscribe="EXCLUSIVE")
    assert "parts-on-whole-nodes" in findings(known, gpus=gpus)
    assert "parts-on-whole-nodes" not in findings(known, gpus=Gpus(1, "a100"))
    assert "parts-on-whole-nodes" not in findings(gpus=gpus)


def test_tasks_on_a_socket_are_at_most_its_cpus() -> None:
    """Differential test, I."""
    asked = request(nodes=1, ntasks=2, ntasks_per_socket=33)
    (finding,) = [f for f in check(asked) if f.severity == "error"]
    assert (finding.code, finding.fix) == ("tasks-per-socket", (("ntasks-per-socket", "32"),))
    assert not errors({f.code: f for f in fixed(asked, finding)})
    assert not errors(findings(nodes=1, ntasks=2, ntasks_per_socket=32))


@pytest.mark.parametrize(
    ("asks", "severity"),
    [
        ({"ntasks": 16, "cpus_per_task": 8}, "error"),  # seen waiting for Resources on 24.11
        ({"ntasks": 2, "cpus_per_task": 1}, "error"),
        ({"ntasks": 4, "cpus_per_task": 8, "nodes": 3}, "error"),
        ({"ntasks": 3, "cpus_per_task": 8, "nodes": 3}, None),
        ({"ntasks": 3, "cpus_per_task": 8, "nodes": "1-3"}, None),
        ({"ntasks": 4, "ntasks_per_node": 1, "cpus_per_task": 8}, None),
        ({"ntasks": 99}, None),
        ({"ntasks": 2, "options": {"tres-per-task": "cpu=8"}}, "error"),
        ({"ntasks": 2, "cpus_per_task": 8, "mincpus": 16}, "warning"),
        ({"ntasks": 2, "cpus_per_task": 8, "gpus": Gpus(1, "a100"), "nodes": 1}, "warning"),
        ({"ntasks": 160, "nodes": 2, "exclusive": True}, "error"),
        ({"ntasks": 128, "nodes": 2, "exclusive": True}, None),
        ({"ntasks": 16, "cpus_per_task": 8, "nodes": 2, "exclusive": True}, None),
    ],
)
def test_tasks_share_cpus_only_without_cpus_per_task(
    asks: dict[str, Any], severity: str | None
) -> None:
    """From 24.11 on: `dist_tasks` in cons_tres/dist_tasks.c."""
    for release in RELEASES:
        found = findings(capabilities(release), overcommit=True, **asks).get("overcommit-cpus")
        known = severity if release != "22.05" else None
        assert (found and found.severity) == known, release


def test_a_job_whose_tasks_cannot_share_cpus_starts_without_overcommit() -> None:
    asked = request(ntasks=16, cpus_per_task=8, overcommit=True)
    (finding,) = [f for f in check(asked) if f.severity == "error"]
    assert (finding.code, finding.fix) == ("overcommit-cpus", (("overcommit", ""),))
    assert not errors({f.code: f for f in fixed(asked, finding)})


def test_tasks_that_share_cpus_need_one_node() -> None:
    asked = request(ntasks=99, overcommit=True)
    assert (asked.nodes, asked.total["cpu"], asked.most["cpu"]) == (1, 1, 1)
