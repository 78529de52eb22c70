"""Limits of QOS and associations: which are in force, who says no, and what the user is told."""

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
    with_limits,
    with_partition,
    with_qos,
)
from recorded_lab import capabilities, standing

from slurmkit.planning.checks.fixes import request_builder
from slurmkit.planning.checks.limits import effective_limits
from slurmkit.planning.checks.limits_use import time_limit_minutes
from slurmkit.planning.checks.registry import check
from slurmkit.spec.gpus import Gpus
from slurmkit.state.model import Association, Limits, LimitUsage, Qos

A100 = Gpus(8, "a100")


def test_a_per_user_limit_in_the_users_terms() -> None:
    where = with_qos("high", limits=Limits(max_tres_per_user={"gres/gpu": 8}))
    found = findings(where=where, gpus=A100, nodes=2, qos="high")
    (finding,) = found.values()
    assert finding.code == "qos-max-tres-per-user"
    assert finding.message == (
        "asks for 16 GPUs; QOS high allows one user 8 GPUs (MaxTRESPerUser gres/gpu=8);"
        " it would pend for ever"
    )
    assert finding.source == "QOS high: MaxTRESPerUser gres/gpu=8"
    assert finding.fix == (("nodes", "1"),)


def test_with_denyonlimit_sbatch_refuses() -> None:
    where = with_qos("high", limits=Limits(max_wall=60), flags=("DenyOnLimit",))
    found = findings(where=where, qos="high", time="2:00:00")
    assert "sbatch would refuse it" in found["qos-max-wall"].message
    assert found["qos-max-wall"].fix == (("time", "1:00:00"),)


# Field and its limit; what is asked for; the options that would do.
QOS_LIMITS: list[tuple[str, dict[str, int] | int, dict[str, Any], str]] = [
    ("max_tres_per_job", {"cpu": 8}, {"cpus_per_task": 16}, "--cpus-per-task=8"),
    ("max_tres_per_node", {"gres/gpu": 4}, {"gpus": A100}, "--gpus-per-node=a100:4"),
    ("max_tres_per_user", {"mem": 4096}, {"mem": "8G"}, "--mem=4G"),
    ("max_tres_per_account", {"node": 1}, {"nodes": 2}, "--nodes=1"),
    ("grp_tres", {"gres/gpu": 2}, {"gpus": Gpus(4)}, "--gpus-per-node=2"),
    ("min_tres_per_job", {"gres/gpu": 2}, {"gpus": Gpus(1, "a100")}, "--gpus-per-node=a100:2"),
    ("max_tres_mins_per_job", {"gres/gpu": 60}, {"gpus": A100}, "--time=7:00"),
    ("grp_tres_run_mins", {"cpu": 60}, {"time": "2:00:00"}, "--time=1:00:00"),
    ("max_tres_run_mins_per_user", {"cpu": 60}, {"time": "2:00:00"}, "--time=1:00:00"),
    ("max_wall", 60, {"time": "2:00:00"}, "--time=1:00:00"),
    ("max_submit", 3, {"array": "10-19%2"}, "--array=10-12%2"),
]


@pytest.mark.parametrize(("field", "limit", "spec", "fix"), QOS_LIMITS)
def test_every_limit_of_a_qos(
    field: str, limit: dict[str, int] | int, spec: dict[str, Any], fix: str
) -> None:
    where = with_qos("high", limits=Limits(**{field: limit}))
    asked = request(where=where, qos="high", **spec)
    (finding,) = [f for f in check(asked) if f.severity == "error"]
    assert finding.code == f"qos-{field.replace('_', '-')}"
    assert finding.fix_words == fix
    assert not [f for f in fixed(asked, finding) if f.severity == "error"]
    assert not errors(findings(where=where, **spec)), "the QOS normal has no such limit"


@pytest.mark.parametrize(
    ("gpus", "fix"),
    [
        (Gpus(1, "a100", "task"), ("gpus-per-task", "a100:4")),
        (Gpus(2, "a100", "job"), ("gpus", "a100:8")),
        (Gpus(1, "a100"), ("gpus-per-node", "a100:8")),
    ],
)
def test_more_gpus_are_asked_for_in_the_same_way(gpus: Gpus, fix: tuple[str, str]) -> None:
    where = with_qos("high", limits=Limits(min_tres_per_job={"gres/gpu": 8}))
    found = findings(where=where, qos="high", ntasks=2, nodes=1, gpus=gpus)
    assert found["qos-min-tres-per-job"].fix == (fix,)


def test_a_limit_per_node_is_judged_by_the_average_as_slurm_does() -> None:
    where = with_qos("high", limits=Limits(max_tres_per_node={"gres/gpu": 2}))
    asked = {"where": where, "qos": "high", "nodes": 2}
    found = findings(gpus=Gpus(5, "a100", "job"), **asked)["qos-max-tres-per-node"]
    assert found.severity == "warning"
    assert "one of 2 nodes gets at least 3 GPUs" in found.message
    assert "qos-max-tres-per-node" not in findings(gpus=Gpus(4, "a100", "job"), **asked)
    assert errors(findings(gpus=Gpus(7, "a100", "job"), **asked)) == ["qos-max-tres-per-node"]


@pytest.mark.parametrize("owner", [("vision", "alice"), ("vision", ""), ("root", "")])
def test_limits_of_an_association_and_its_parents(owner: tuple[str, str]) -> None:
    where = with_limits(*owner, limits=Limits(grp_tres={"gres/gpu": 4}))
    (finding,) = findings(where=where, gpus=A100).values()
    assert finding.code == "assoc-grp-tres"
    assert finding.fix == (("gpus-per-node", "a100:4"),)


def test_a_users_own_limit_goes_before_its_accounts() -> None:
    where = with_limits("vision", limits=Limits(max_tres_per_job={"cpu": 2}))
    assert errors(findings(where=where, cpus_per_task=4)) == ["assoc-max-tres-per-job"]
    own = with_limits("vision", "alice", limits=Limits(max_tres_per_job={"cpu": 8}))
    account = next(a for a in where.associations if a.account == "vision" and not a.user)
    both = replace(
        own,
        associations=tuple(
            account if (a.account, a.user) == ("vision", "") else a for a in own.associations
        ),
    )
    assert not errors(findings(where=both, cpus_per_task=4))


def test_a_qos_takes_the_place_of_an_associations_limit() -> None:
    where = with_limits("vision", limits=Limits(max_wall=60, max_tres_per_job={"cpu": 2}))
    where = with_qos("high", where, limits=Limits(max_wall=600))
    assert errors(findings(where=where, qos="high", time="2:00:00")) == []
    assert errors(findings(where=where, qos="high", cpus_per_task=4)) == ["assoc-max-tres-per-job"]


def test_the_partitions_qos_goes_first_but_not_before_overpartqos() -> None:
    known = with_partition("gpu", qos="part")
    where = with_qos("part", limits=Limits(max_wall=60))
    where = with_qos("high", where, limits=Limits(max_wall=600))
    found = findings(known, where, qos="high", time="2:00:00")
    assert found["qos-max-wall"].source == "QOS part of partition gpu: MaxWall=60"
    over = with_qos("high", where, limits=Limits(max_wall=600), flags=("OverPartQOS",))
    assert not findings(known, over, qos="high", time="2:00:00")
    assert errors(findings(known, over, qos="high", time="12:00:00")) == ["qos-max-wall"]


def test_limits_that_are_not_enforced_are_none() -> None:
    known = with_config(AccountingStorageEnforce="associations")
    where = with_qos("high", limits=Limits(max_wall=60))
    assert not findings(known, where, qos="high", time="2:00:00")


def test_a_factor_of_the_qos_raises_associations_limits() -> None:
    where = with_limits("vision", limits=Limits(grp_tres={"gres/gpu": 4}))
    assert errors(findings(where=where, gpus=A100, qos="high"))
    where = with_qos("high", where, limit_factor=2.0)
    assert not errors(findings(where=where, gpus=A100, qos="high"))


def test_what_others_hold_makes_it_wait() -> None:
    usage = LimitUsage(tres={"gres/gpu": 6})
    where = with_qos("high", limits=Limits(max_tres_per_user={"gres/gpu": 8}), user_usage=usage)
    (finding,) = findings(where=where, gpus=Gpus(4, "a100"), qos="high").values()
    assert (finding.severity, finding.code) == ("note", "qos-max-tres-per-user")
    assert "6 of the 8 GPUs" in finding.message
    assert not findings(where=where, gpus=Gpus(2, "a100"), qos="high")


def test_running_jobs_make_it_wait_and_no_jobs_at_all_for_ever() -> None:
    where = with_limits("vision", "alice", limits=Limits(max_jobs=2), usage=LimitUsage(jobs=2))
    (finding,) = findings(where=where).values()
    assert (finding.severity, finding.code) == ("note", "assoc-max-jobs")
    none = with_limits("vision", limits=Limits(grp_jobs=0))
    (finding,) = findings(where=none).values()
    assert (finding.severity, finding.code) == ("error", "assoc-grp-jobs")


def test_a_qos_that_counts_jobs_per_account_hides_an_associations_limit() -> None:
    where = with_limits(
        "vision", "alice", limits=Limits(max_submit=1), usage=LimitUsage(submitted=1)
    )
    assert errors(findings(where=where)) == ["assoc-max-submit"]
    where = with_qos("normal", where, limits=Limits(max_submit_per_account=100))
    assert not errors(findings(where=where))


def test_a_full_queue_has_no_fix_but_time() -> None:
    where = with_limits(
        "vision", "alice", limits=Limits(max_submit=1), usage=LimitUsage(submitted=1)
    )
    (finding,) = findings(where=where).values()
    assert not finding.fix
    assert "submit it when some have ended" in finding.message


# --- TRES-minutes ---------------------------------------------------------------------------------

BUDGET = Limits(grp_tres_mins={"gres/gpu": 600})


def test_over_budget_without_safe_starts_and_is_killed() -> None:
    where = with_limits("vision", limits=BUDGET, usage=LimitUsage(tres_mins={"gres/gpu": 120}))
    (finding,) = findings(where=where, gpus=A100, time="2:00:00").values()
    assert finding.code == "assoc-grp-tres-mins"
    assert finding.message == (
        "needs 16 GPU-hours; account vision has 480 GPU-minutes left (GrpTRESMins gres/gpu=600);"
        " it would start, and Slurm would kill it after 1:00:00 (limits without safe)"
    )
    assert finding.fix == (("time", "1:00:00"),)


def test_over_budget_with_safe_pends() -> None:
    known = with_config(AccountingStorageEnforce="associations,limits,safe")
    where = with_limits("vision", limits=BUDGET)
    (finding,) = findings(known, where, gpus=A100, time="2:00:00").values()
    assert "it would pend for ever" in finding.message
    assert finding.fix == (("time", "1:15:00"),)


def test_a_budget_used_up_lets_nothing_start() -> None:
    where = with_limits("vision", limits=BUDGET, usage=LimitUsage(tres_mins={"gres/gpu": 600}))
    finding = findings(where=where, gpus=Gpus(1, "a100"))["assoc-grp-tres-mins"]
    assert "0 GPU-minutes left" in finding.message
    assert "pend for ever" in finding.message
    assert not findings(where=where), "a job without GPUs takes none of it"


@pytest.mark.parametrize(("enforced", "severity"), [("limits", "warning"), ("limits,safe", "note")])
def test_what_running_jobs_may_take_of_a_budget(enforced: str, severity: str) -> None:
    usage = LimitUsage(tres_run_mins={"gres/gpu": 590})
    known = with_config(AccountingStorageEnforce=enforced)
    where = with_limits("vision", limits=BUDGET, usage=usage)
    (finding,) = findings(known, where, gpus=A100).values()
    assert (finding.severity, finding.code) == (severity, "assoc-grp-tres-mins")


def test_a_budget_for_some_tasks_of_an_array() -> None:
    where = with_limits("vision", limits=BUDGET)
    (finding,) = findings(where=where, gpus=A100, array="0-9").values()
    assert finding.severity == "warning"
    assert "enough for 7 of the 10 array tasks" in finding.message


def test_a_free_qos_needs_no_budget() -> None:
    where = with_qos("high", with_limits("vision", limits=BUDGET), usage_factor=0.0)
    assert not findings(where=where, qos="high", gpus=A100, time="2-0")


def test_a_factor_counts_beforehand_only_where_it_is_safe() -> None:
    limits = Limits(max_tres_mins_per_job={"cpu": 60})
    where = with_qos("high", limits=limits, usage_factor=2.0)
    assert not findings(where=where, qos="high", time="1:00:00")
    where = with_qos("high", limits=limits, usage_factor=2.0, flags=("UsageFactorSafe",))
    assert errors(findings(where=where, qos="high", time="1:00:00"))


@pytest.mark.parametrize(("used", "end"), [(0, "killed after 1:00:00"), (60, "pend for ever")])
def test_wall_time_of_a_group(used: int, end: str) -> None:
    where = with_limits("vision", limits=Limits(grp_wall=60), usage=LimitUsage(wall=used))
    finding = findings(where=where, time="2:00:00")["assoc-grp-wall"]
    assert end in finding.message
    assert finding.fix == ((("time", "1:00:00"),) if not used else ())


# --- the time itself ------------------------------------------------------------------------------


def test_a_time_in_seconds_counts_as_the_next_minute() -> None:
    where = with_qos("high", limits=Limits(max_wall=1))
    assert time_limit_minutes(request(time="1:01")) == 2
    assert errors(findings(where=where, qos="high", time="1:01")) == ["qos-max-wall"]


def test_without_a_time_the_partitions_default_counts() -> None:
    asked = request(time=None)
    assert time_limit_minutes(asked) == 60
    notes = {f.code: f for f in check(asked)}
    assert "1:00:00, DefaultTime of partition gpu" in notes["default-time"].message


def test_without_any_default_a_limit_becomes_the_time() -> None:
    known = with_partition("gpu", default_time=None)
    where = with_qos("high", limits=Limits(max_wall=90))
    assert time_limit_minutes(request(known, where, time=None, qos="high")) == 90
    assert not errors(findings(known, where, time=None, qos="high"))


def test_no_time_limit_at_all_breaks_every_budget() -> None:
    known = with_partition("gpu", default_time=None, max_time=None)
    where = with_limits("vision", limits=Limits(grp_tres_run_mins={"cpu": 60}))
    asked = request(known, where, time=None)
    assert asked.seconds is None
    found = findings(known, where, time=None)
    assert "has no time limit" in found["assoc-grp-tres-run-mins"].message


def test_nothing_is_in_force_without_a_qos_or_association() -> None:
    where = replace(standing(), associations=(), qos=(), default_account=None)
    assert not list(effective_limits(request(where=where), "grp_tres"))


def test_several_limits_have_one_fix_that_passes_them_all() -> None:
    limits = Limits(max_tres_per_user={"gres/gpu": 8}, max_wall=60)
    where = with_qos("high", limits=limits)
    asked = request(where=where, gpus=A100, nodes=2, qos="high", time="2:00:00")
    for finding in (f for f in check(asked) if f.severity == "error"):
        assert dict(finding.fix) == {"nodes": "1", "time": "1:00:00"}
        assert not [f for f in fixed(asked, finding) if f.severity == "error"]


def test_the_same_gpus_on_fewer_nodes_or_fewer_on_each() -> None:
    where = with_qos("high", limits=Limits(max_tres_per_user={"gres/gpu": 4}))
    (finding,) = findings(where=where, gpus=A100, nodes=2, qos="high").values()
    asked = request(where=where, gpus=A100, nodes=2, qos="high")
    assert not [f for f in fixed(asked, finding) if f.severity == "error"]
    assert dict(finding.fix) == {"gpus-per-node": "a100:2"}


def test_another_qos_where_nothing_smaller_helps() -> None:
    where = with_qos("high", limits=Limits(max_tres_per_job={"gres/gpu": 0}))
    (finding,) = findings(where=where, gpus=Gpus(1, "a100"), qos="high").values()
    assert finding.fix == (("qos", "normal"),)


# --- who one is -----------------------------------------------------------------------------------


def test_an_account_one_does_not_have() -> None:
    (finding,) = findings(account="visoin").values()
    assert finding.code == "no-association"
    assert finding.fix == (("account", "vision"),)


def test_associations_not_enforced_are_not_asked_for() -> None:
    assert not findings(with_config(AccountingStorageEnforce="none"), account="nope")


def test_what_is_hidden_is_said_not_taken_for_absent() -> None:
    where = replace(
        standing(), associations=(), qos=(), default_account=None, hidden=("PrivateData",)
    )
    found = findings(where=where)
    assert not errors(found)
    assert {"unknown-limits", "unknown-account"} <= set(found)
    named = findings(where=where, qos="high")
    assert named["unknown-qos"].severity == "warning"


RESERVED = with_qos("high", flags=("RequiresReservation",))


@pytest.mark.parametrize(
    ("qos", "where", "code", "fix"),
    [
        ("hihg", standing(), "no-qos", "normal"),
        ("secret", with_qos("secret"), "qos-not-allowed", "normal"),
        (
            "high",
            with_qos("high", flags=("RequiresReservation",)),
            "qos-needs-reservation",
            "normal",
        ),
    ],
)
def test_a_qos_that_one_cannot_have(qos: str, where: Any, code: str, fix: str) -> None:
    (finding,) = findings(where=where, qos=qos).values()
    assert (finding.code, finding.fix) == (code, (("qos", fix),))


def test_names_of_accounts_and_qos_count_without_case() -> None:
    where = with_qos("high", limits=Limits(max_wall=60))
    assert not findings(where=where, account="Vision")
    assert errors(findings(where=where, qos="HIGH", time="2:00:00")) == ["qos-max-wall"]


def test_the_qos_of_a_partition_that_nobody_shows() -> None:
    known = with_partition("gpu", qos="secret")
    (finding,) = findings(known).values()
    assert (finding.severity, finding.code) == ("warning", "unknown-partition-qos")


def test_a_threshold_of_fair_share_could_not_be_checked() -> None:
    where = with_qos("high", flags=("EnforceUsageThreshold",))
    assert findings(where=where, qos="high")["unknown-usage-threshold"].severity == "warning"


def test_a_partition_of_ones_association() -> None:
    own = Association(
        account="vision",
        user="alice",
        partition="gpu",
        default_qos="normal",
        qos=("normal",),
        limits=Limits(max_wall=30),
    )
    where = standing()
    where = replace(where, associations=(*where.associations, own), qos=(Qos(name="normal"),))
    found = findings(where=where, time="1:00:00")
    assert found["assoc-max-wall"].source == "alice in vision (partition gpu): MaxWall=30"
    assert not findings(capabilities(), where, time="1:00:00", partition="cpu")


def test_whole_nodes_may_be_larger_than_a_limit_allows() -> None:
    """Differential test, C: Slurm takes two nodes with 8 GPUs, and waits for the limit."""
    where = with_qos("normal", limits=Limits(max_tres_per_job={"gres/gpu": 12}))
    found = findings(where=where, qos="normal", nodes=2, mem="1G", exclusive=True)
    finding = found["qos-max-tres-per-job-at-most"]
    assert finding.severity == "warning"
    assert "12 GPUs to 16 GPUs" in finding.message
    assert not findings(where=where, qos="normal", nodes=1, mem="1G", exclusive=True)


@pytest.mark.parametrize(
    ("limit", "asks", "warned"),
    [
        ({"gres/gpu": 8}, {"nodes": "1-2", "gpus": Gpus(8, "a100")}, True),
        ({"gres/gpu": 16}, {"nodes": "1-3", "gpus": Gpus(8, "a100")}, False),  # two nodes have them
        ({"gres/gpu": 12}, {"nodes": "1-2", "exclusive": True}, True),
        ({"cpu": 5}, {"nodes": "1-2", "cpus_per_task": 3}, True),
        ({"cpu": 8}, {"nodes": "1-2", "ntasks": 8}, False),
        ({"node": 1}, {"nodes": "1-2"}, False),  # Slurm makes the range shorter
        ({"node": 2, "gres/gpu": 16}, {"nodes": "1-3", "exclusive": True}, False),
        ({"gres/gpu": 8}, {"nodes": 1, "gpus": Gpus(8, "a100")}, False),
    ],
)
def test_a_range_of_nodes_may_get_more_than_a_limit_allows(
    limit: dict[str, int], asks: dict[str, Any], warned: bool
) -> None:
    """Slurm takes as many nodes as are free, and then waits for the limit."""
    where = with_qos("normal", limits=Limits(max_tres_per_job=limit))
    found = findings(where=where, qos="normal", mem="1G", **asks)
    assert ("qos-max-tres-per-job-at-most" in found) is warned
    assert not errors(found)


def test_whole_nodes_may_be_larger_than_a_limit_on_each_node() -> None:
    where = with_qos("normal", limits=Limits(max_tres_per_node={"gres/gpu": 4}))
    asks = {"where": where, "qos": "normal", "mem": "1G", "exclusive": True, "nodes": 1}
    assert "qos-max-tres-per-node-at-most" in findings(**asks)
    assert not findings(**asks, nodelist="c3")


@pytest.mark.parametrize(
    ("limit", "asks", "severity"),
    [
        ({"gres/gpu": 11}, {"nodes": 2}, "error"),  # c3 has 4 GPUs, c1 and c2 have 8
        ({"gres/gpu": 12}, {"nodes": 2}, "warning"),
        ({"gres/gpu": 16}, {"nodes": 2}, None),
        ({"gres/gpu": 15}, {"nodes": 2, "nodelist": "c[1-2]"}, "error"),
        ({"gres/gpu": 11}, {"nodes": 2, "nodelist": "c1"}, "error"),
        ({"gres/gpu": 3}, {"nodes": 1}, "error"),
        ({"cpu": 127}, {"nodes": 2}, "error"),
        ({"cpu": 128}, {"nodes": 2}, None),
        ({"mem": 2 * 64 * 1024 - 1}, {"nodes": 2, "mem": None, "mem_per_cpu": "1G"}, "error"),
        ({"mem": 2 * 64 * 1024}, {"nodes": 2, "mem": None, "mem_per_cpu": "1G"}, None),
        ({"mem": 2048}, {"nodes": 2}, None),
        ({"node": 1}, {"nodes": 2}, "error"),
    ],
)
@pytest.mark.parametrize("field", ["max_tres_per_job", "grp_tres"])
def test_whole_nodes_count_in_full_against_a_limit(
    field: str, limit: dict[str, int], asks: dict[str, Any], severity: str | None
) -> None:
    """Slurm never starts it where all nodes that it may take are over the limit."""
    where = with_qos("normal", limits=Limits(**{field: limit}))
    found = findings(where=where, qos="normal", exclusive=True, **{"mem": "1G", **asks})
    code = f"qos-{field.replace('_', '-')}"
    severities = {f.severity for name, f in found.items() if name.startswith(code)}
    assert severities == ({severity} if severity else set())


def test_what_a_limit_may_keep_from_starting_is_not_proposed() -> None:
    where = with_qos("normal", limits=Limits(max_tres_per_job={"gres/gpu": 6}))
    asked = request(where=where, qos="normal", exclusive=True, nodes=2, mem="1G")
    (found,) = [finding for finding in check(asked) if finding.severity == "error"]
    assert found.code == "qos-max-tres-per-job"
    assert found.fix != (("nodes", "1"),)  # that fits only if Slurm takes c3
    rebuilt = request_builder(asked)(found.fix)
    assert rebuilt is not None
    assert not [each for each in check(rebuilt) if each.keeps_from_starting]
