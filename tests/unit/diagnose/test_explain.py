"""Why a job waits: what it asks for, who is in its way, its rank and the limits it meets."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import why_scene as lab
from why_scene import NOW

from slurmkit.cluster.cluster import Cluster
from slurmkit.diagnose import alternatives, blockers, details, explain, snapshot
from slurmkit.diagnose.explain import _start
from slurmkit.diagnose.free_resources import free_tres
from slurmkit.diagnose.respec import rebuild_spec
from slurmkit.diagnose.snapshot import (
    _FIELDS,
    _NEWER,
    PendingRequest,
    PendingSnapshot,
    parse_pending_request,
    read_license_holders,
    read_pending_request,
)
from slurmkit.errors import SlurmError
from slurmkit.formats import display
from slurmkit.spec.gpus import Gpus
from slurmkit.state.gres import GresUse
from slurmkit.state.model import Limits, LimitUsage
from slurmkit.state.nodes import PartCount
from slurmkit.testing import FakeSlurm, squeue_text

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = ("22.05", "24.11", "26.05")
MARK = "\x1frecorded"


def recorded_asked(release: str) -> list[PendingRequest]:
    """The six jobs that were recorded, in their order."""
    since = tuple(map(int, release.split(".")))
    names = [*_FIELDS, *(name for newer, name in _NEWER if since >= newer)]
    parts = (RECORDED / release / "asked.txt").read_text("utf-8").split(MARK)
    rows = [parts[at : at + len(names)] for at in range(0, len(parts) - 1, len(names))]
    return [parse_pending_request(dict(zip(names, row, strict=True))) for row in rows]


@pytest.mark.parametrize("release", RELEASES)
def test_what_a_job_asks_for_is_read_on_each_release(release: str) -> None:
    two, per_job, per_task, shard, socket, plain = recorded_asked(release)
    assert two.gpus == Gpus(4, "a100")
    assert (two.exclusive, two.tasks_per_node, two.cpus_per_task, two.memory) == (
        True,
        4,
        2,
        102400,
    )
    assert per_job.gpus == Gpus(3, per="job")
    assert (per_job.tasks, per_job.memory_per_gpu, per_job.cpus_per_gpu) == (3, 4096, 2)
    assert per_task.gpus == Gpus(1, per="task")
    assert (per_task.cpus_per_task, per_task.exclusive) == (2, False)
    assert shard.gpus == Gpus(shard=2)
    assert shard.exclude == ("" if release == "22.05" else "c1")
    assert socket.gpus is None
    assert len(socket.odd) == 1
    assert (plain.contiguous, plain.memory, plain.time_min) == (True, 0, "5:00")
    assert plain.gpus is None
    assert plain.odd == ()
    assert all(one.batch and one.error == "/tmp/err" for one in (two, per_job, plain))


def test_before_24_05_the_nodes_it_does_not_want_are_asked_for_apart() -> None:
    text = (RECORDED / "22.05" / "asked.txt").read_text("utf-8").splitlines(keepends=True)[3]

    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        mark = argv[-1].rpartition(":")[2] or argv[-1].removeprefix("%x")
        return f"c[1,3]{argv[-1][2:]}\n" if "-o" in argv else text.replace(MARK, mark)

    slurm = FakeSlurm({"squeue": squeue})
    assert read_pending_request(slurm, "7", (22, 5, 8)).exclude == "c[1,3]"
    assert len(slurm.asked) == 2


@pytest.mark.parametrize("release", RELEASES)
def test_priorities_are_read_on_each_release(release: str) -> None:
    text = (RECORDED / release / "sprio.txt").read_text("utf-8")
    (found,) = blockers.parse_priority(text, MARK, lab.CONFIG)
    assert found.partition == "mps"
    points = {factor.name: factor.points for factor in found.factors}
    assert points["nice"] == -7
    assert found.total == pytest.approx(sum(points.values()), abs=2)
    assert found.reading.startswith("fairshare is its weakest factor: ")


def test_a_job_without_a_priority_has_none_and_half_an_answer_is_an_error() -> None:
    """What sprio 24.11.5 prints of a job that is held, with exit status 0."""
    text = "Unable to find jobs matching user/id(s) specified\n"
    assert blockers.parse_priority(text, MARK, lab.CONFIG) == ()
    assert blockers.parse_priority("", MARK, lab.CONFIG) == ()
    with pytest.raises(SlurmError, match="sprio's answer broke off"):
        blockers.parse_priority(f"mps{MARK}12", MARK, lab.CONFIG)


def test_a_factor_at_its_best_and_weights_of_nothing_are_said() -> None:
    assert blockers.describe_weakest_factor([]).startswith("no factor has a weight")
    best = blockers.Factor("QOS", 10.0, 10.0)
    assert blockers.describe_weakest_factor([best]) == "every factor is at its maximum"


def test_the_rank_counts_only_those_that_could_start() -> None:
    job = lab.row("5", priority=50)
    rows = (
        job,
        lab.row("1", priority=90),
        lab.row("2", priority=50),
        lab.row("9", priority=50),
        lab.row("3", priority=99, reason="Dependency"),
        lab.row("4", priority=0, reason="JobHeldUser"),
        lab.row("6", priority=99, partition="cpu"),
        lab.row("7", priority=99, partition="cpu,gpu", eligible=NOW + 60),
    )
    place = blockers.rank_in_partition("gpu", job, rows, NOW)
    assert place is not None
    assert (place.place, place.waiting, place.out_of_it) == (3, 4, 3)
    assert blockers.rank_in_partition("gpu", rows[5], rows, NOW) is None


def test_what_is_short_is_said_with_the_largest_free_block() -> None:
    job = lab.row("5", tres="cpu=1,mem=1G,node=1,gres/gpu=4,gres/gpu:a100=4")
    made = lab.scene(
        job, lab.running("1", "c1", "a100=8", 30), lab.running("2", "c2", "a100=5", 90)
    )
    said = details.collect_reason_facts(made)
    assert "free now: 3 a100 GPUs (c2 3); the most on one node is 3" in said.details
    assert [(b.name, b.until) for b in said.blockers] == [("1", NOW + 1800), ("2", NOW + 5400)]
    assert said.blockers[0].holds == "8 a100 GPUs on c1"


def test_backfills_plan_names_the_nodes_whose_jobs_are_in_the_way() -> None:
    made = lab.scene(
        lab.row("5"),
        lab.running("1", "c1", "a100=8", 30),
        lab.running("2", "c2", "a100=8", 90),
        asked=lab.asked(planned_nodes="c2"),
    )
    assert [b.name for b in details.collect_reason_facts(made).blockers] == ["2"]


def test_other_types_of_gpu_are_not_in_the_way() -> None:
    made = lab.scene(lab.row("5"), lab.running("1", "c3", "h100=4", 30))
    assert details.collect_reason_facts(made).blockers == ()


def test_who_wants_shards_waits_for_whole_gpus_too() -> None:
    job = lab.row("5", tres="cpu=1,mem=1G,node=1,gres/shard=2", partition="gpu")
    made = lab.scene(job, lab.running("1", "c3", "h100=4", 30), asked=lab.asked(planned_nodes="c3"))
    assert [b.name for b in details.collect_reason_facts(made).blockers] == ["1"]


def test_a_request_that_no_node_can_hold_is_said_to_be_one() -> None:
    job = lab.row("5", tres="cpu=1,mem=1G,node=1,gres/gpu=9,gres/gpu:a100=9")
    (said,) = details.collect_reason_facts(lab.scene(job)).details
    assert said == (
        "it asks for 9 a100 GPUs on one node, and no node that it may use in partition gpu has that"
        " many"
    )


def test_pending_jobs_before_it_come_first() -> None:
    job = lab.row("5", reason="Priority")
    made = lab.scene(job, lab.row("3", priority=200), lab.row("8", priority=100))
    (before,) = details.collect_reason_facts(made).blockers
    assert (before.name, before.state) == ("3", "PENDING")
    assert before.holds == "is ahead, and waits for 2 a100 GPUs"
    assert before.until is None


def test_a_job_that_nobody_is_ahead_of_does_not_wait_for_others() -> None:
    job = lab.row("5", reason="Priority")
    said = details.collect_reason_facts(lab.scene(job))
    assert said.text is not None
    assert said.text.meaning.startswith("what it asks for is free, and no job is ahead of it")
    larger = msgspec.structs.replace(job, nodes=3)
    assert details.collect_reason_facts(lab.scene(larger)).text is None


def test_a_limit_is_named_with_its_value_its_use_and_who_uses_it() -> None:
    job = lab.row("5", account="genomics", reason="AssocGrpGRES")
    other = lab.running("1", "c1", "a100=4", 30, user="dave", account="genomics")
    elsewhere = lab.running("2", "c2", "a100=4", 30, user="dave", account="vision")
    said = details.collect_reason_facts(lab.scene(job, other, elsewhere))
    assert said.details == (
        "GrpTRES of account genomics is 4 GPUs: 4 GPUs used, 2 GPUs asked for",
        "held by dave 4 GPUs",
    )
    assert [b.name for b in said.blockers] == ["1"]


def test_a_limit_below_what_the_job_asks_for_never_passes() -> None:
    """QOSGrpGRES with 5 asked of 4."""
    qos = msgspec.structs.replace(lab.standing().qos[0], limits=Limits(grp_tres={"gres/gpu": 4}))
    job = lab.row("5", reason="QOSGrpGRES", tres="cpu=1,mem=1G,node=1,gres/gpu=5,gres/gpu:a100=5")
    text = details.collect_reason_facts(lab.scene(job, standing=lab.standing(qos=(qos,)))).text
    assert text is not None
    assert text.meaning == (
        "it asks for 5 GPUs, but GrpTRES of QOS normal is 4 GPUs, so it does not start"
    )
    assert "passes" not in text.who
    assert text.advice.startswith("ask for less, or use another QOS")
    fits = lab.row("5", reason="QOSGrpGRES")
    used = msgspec.structs.replace(qos, usage=LimitUsage(tres={"gres/gpu": 4}))
    scene = lab.scene(fits, standing=lab.standing(qos=(used,)))
    assert details.collect_reason_facts(scene).text is None


def test_a_limit_of_no_job_at_all_never_passes() -> None:
    """MaxJobsPerUser=0."""
    qos = msgspec.structs.replace(lab.standing().qos[0], limits=Limits(max_jobs=0))
    job = lab.row("5", reason="QOSMaxJobsPerUserLimit")
    text = details.collect_reason_facts(lab.scene(job, standing=lab.standing(qos=(qos,)))).text
    assert text is not None
    assert text.meaning == "MaxJobsPerUser of QOS normal is 0 jobs, so it does not start"
    assert "ask for less" not in text.advice


def test_a_qos_that_the_partition_refuses_is_the_cause() -> None:
    """slurmctld then says that nodes are down."""
    reason = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority"
    gpu = lab.partition("gpu", allow_qos=("high",))
    known = lab.capabilities(partitions=(gpu, lab.partition("cpu")))
    job = lab.row("5", reason=f"{reason} partitions")
    said = details.collect_reason_facts(lab.scene(job, capabilities=known))
    assert said.text is not None
    assert said.text.meaning == "its partition does not allow its QOS"
    assert said.details == ("its QOS is normal", "partition gpu allows high")
    both = msgspec.structs.replace(job, partition="gpu,cpu")
    assert details.collect_reason_facts(lab.scene(both, capabilities=known)).text is None
    assert details.collect_reason_facts(lab.scene(job)).text is None


def test_a_drained_node_that_is_asked_for_by_name_does_not_pass_by_itself() -> None:
    job = lab.row(
        "5", requested_nodes="c2", reason="ReqNodeNotAvail, May be reserved for other job"
    )
    made = lab.scene(job)
    away = msgspec.structs.replace(made.nodes[1], states=("IDLE", "DRAIN"), reason="bad DIMM")
    drained = msgspec.structs.replace(made, nodes=(made.nodes[0], away, *made.nodes[2:]))
    said = details.collect_reason_facts(drained)
    assert said.text is not None
    assert said.text.meaning == "it asks by name for nodes that take no job now: c2 (drained)"
    assert "passes" not in said.text.who
    assert said.details == ("c2 is IDLE+DRAIN: bad DIMM",)
    assert details.collect_reason_facts(made).text is None


def test_a_node_that_may_be_reserved_is_held_by_somebody() -> None:
    job = lab.row(
        "5", requested_nodes="c2", reason="ReqNodeNotAvail, May be reserved for other job"
    )
    made = lab.scene(job, lab.running("1", "c2", "a100=8", 30), lab.row("3", priority=200))
    found = details.collect_reason_facts(made).blockers
    assert [(b.name, b.state) for b in found] == [("1", "RUNNING"), ("3", "PENDING")]


def test_licences_name_who_holds_them() -> None:
    made = lab.scene(
        lab.row("5", reason="Licenses"),
        lab.running("1", "c1", "a100=2", 30),
        lab.running("2", "c2", "a100=2", 90),
        asked=lab.asked(licenses="matlab:2"),
        capabilities=lab.capabilities(licenses={"matlab": 5, "ansys": 1}),
        license_holders={"1": "matlab:4,ansys", "2": "ansys:1", "9": "matlab:1"},
    )
    said = details.collect_reason_facts(made)
    assert said.details == (
        "it asks for matlab:2", "matlab: 4 of 5 are held by the jobs below"
    )  # fmt: skip
    assert [(b.name, b.holds) for b in said.blockers] == [("1", "licences matlab:4,ansys")]
    elsewhere = msgspec.structs.replace(made, license_holders={})
    assert details.collect_reason_facts(elsewhere).details[1] == (
        "matlab: no job here holds one; see: scontrol show license matlab"
    )


def test_who_holds_licences_is_read_from_squeue() -> None:
    rows = [
        {"JobArrayID": "7_1", "JobID": "8", "Licenses": "matlab:2"},
        {"JobArrayID": "9", "Licenses": "(null)"},
        {"JobArrayID": "10", "Licenses": "ansys"},
    ]
    slurm = FakeSlurm({"squeue": lambda argv, _: squeue_text(argv, rows)})
    assert read_license_holders(slurm) == {"8": "matlab:2", "10": "ansys"}


def test_the_queue_the_plans_and_the_priority_are_read_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Read one after the other, the first of them waits here in vain."""
    together = threading.Barrier(3, timeout=60)
    row = lab.row("5", reason="Resources")

    def read(text: str) -> str:
        together.wait()
        return text

    def squeue(argv: Sequence[str], _: str | None) -> str:
        mark = argv[argv.index("-O") + 1].rpartition(":")[2]
        plans = "--states=PENDING" in argv
        return read(f"4{mark}c[1-2]{mark}\n" if plans else "")

    slurm = FakeSlurm({"squeue": squeue, "sprio": lambda *_: read(""), "scontrol": lambda *_: ""})
    monkeypatch.setattr(snapshot, "load_capabilities", lambda *_, **__: lab.capabilities())
    monkeypatch.setattr(snapshot, "read_standing", lambda *_: lab.standing())
    monkeypatch.setattr(snapshot, "read_pending_request", lambda *_: lab.asked())
    monkeypatch.setattr(alternatives, "current_user", lambda _: "alice")
    planned: list[dict[str, str]] = []

    def find(_: object, read: PendingSnapshot, __: object) -> alternatives.FoundAlternatives:
        planned.append(read.planned)
        return alternatives.FoundAlternatives()

    monkeypatch.setattr(explain, "find_alternatives", find)
    explain._waiting(Cluster(slurm), row, alternatives=True)
    assert planned == [{"4": "c[1-2]"}]
    assert sorted(argv[0] for argv in slurm.asked) == ["scontrol", "sprio", "squeue", "squeue"]


def test_plans_are_not_read_for_a_job_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "current_user", lambda _: "bob")
    seen: list[object] = []

    def read(*_: object, plans: bool) -> PendingSnapshot:
        seen.append(plans)
        return lab.scene(lab.row("5"))

    monkeypatch.setattr(explain, "read_pending_snapshot", read)
    cluster = Cluster(FakeSlurm({"sprio": lambda *_: ""}))
    waiting = explain._waiting(cluster, lab.row("5"), alternatives=True).waiting
    assert seen == [False]
    assert waiting is not None
    assert waiting.no_alternatives.startswith("only the job's own user, alice,")
    held = explain._waiting(cluster, lab.row("5", reason="JobHeldUser"), alternatives=False).waiting
    assert held is not None
    assert held.who == "its user (alice) or an administrator"


def test_minutes_that_are_used_up_come_back_as_usage_decays() -> None:
    limits = Limits(grp_tres_mins={"gres/gpu": 600})
    known = lab.standing()
    used = msgspec.structs.replace(
        known.associations[1], limits=limits, usage=LimitUsage(tres_mins={"gres/gpu": 590})
    )
    known = msgspec.structs.replace(
        known, associations=(known.associations[0], used, *known.associations[2:])
    )
    made = lab.scene(lab.row("5", reason="AssocGrpGRESMinutes"), standing=known)
    said = details.collect_reason_facts(made).details
    assert said[0] == (
        "GrpTRESMins of account vision is 600 GPU-minutes: 590 GPU-minutes used,"
        " 120 GPU-minutes asked for"
    )
    assert said[1] == "past use counts half after 7-00:00:00"


def test_a_qos_of_one_user_counts_only_that_users_jobs() -> None:
    qos = msgspec.structs.replace(
        lab.standing().qos[0],
        limits=Limits(max_tres_per_user={"gres/gpu": 4}),
        user_usage=LimitUsage(tres={"gres/gpu": 4}),
    )
    known = lab.standing(qos=(qos,))
    mine = lab.running("1", "c1", "a100=4", 30, user="alice")
    theirs = lab.running("2", "c2", "a100=4", 30)
    made = lab.scene(lab.row("5", reason="QOSMaxGRESPerUser"), mine, theirs, standing=known)
    assert [b.name for b in details.collect_reason_facts(made).blockers] == ["1"]


def test_a_limit_that_slurm_hides_is_unknown() -> None:
    known = lab.standing(associations=(), hidden=("PrivateData hides limits",))
    made = lab.scene(lab.row("5", reason="AssocGrpGRES"), standing=known)
    assert "PrivateData hides limits" in details.collect_reason_facts(made).details


def test_a_limit_of_the_partition_is_compared_with_what_is_asked_for() -> None:
    job = lab.row("5", reason="PartitionTimeLimit", time_limit="8-00:00:00")
    assert details.collect_reason_facts(lab.scene(job)).details == (
        "its time limit is 8-00:00:00; MaxTime of partition gpu is 7-00:00:00",
    )


def test_maintenance_says_when_it_begins_and_what_would_end_before() -> None:
    job = lab.row("5", reason="ReqNodeNotAvail, Reserved for maintenance")
    known = lab.with_reservation(lab.standing(), lab.maintenance(30, "c1", "c2"))
    said = details.collect_reason_facts(lab.scene(job, standing=known))
    assert "a job of at most 29:00 would end before that" in said.details[0]
    assert said.blockers[0].kind == "reservation"


def test_nodes_that_are_away_are_named_with_the_reason_an_administrator_gave() -> None:
    made = lab.scene(lab.row("5", reason="ReqNodeNotAvail, UnavailableNodes:c2"))
    away = msgspec.structs.replace(
        made.nodes[1], states=("IDLE", "DRAIN"), reason="bad DIMM", reason_by="root"
    )
    made = msgspec.structs.replace(made, nodes=(made.nodes[0], away, *made.nodes[2:]))
    assert details.collect_reason_facts(made).details == ("c2 is IDLE+DRAIN: bad DIMM (by root)",)


def test_dependencies_are_named_with_what_has_to_become_of_them() -> None:
    text = "afterok:3(unfulfilled),afternotok:4(failed),afterany:8_*(unfulfilled),singleton(unfulf)"
    job = lab.row("9", dependency=text, reason="Dependency")
    made = lab.scene(job, lab.running("3", "c1", "a100=8", 30), lab.row("7"), lab.row("10"))
    found = blockers.dependency_blockers(made, {"4": "COMPLETED"})
    assert [(b.name, b.state) for b in found] == [
        ("3", "RUNNING"),
        ("4", "COMPLETED"),
        ("8", "not in the queue"),
        ("7", "PENDING"),
    ]
    assert found[0].holds == "must succeed first (afterok)"
    assert blockers.parse_dependency_ids(text) == ["3", "4", "8"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("afterok:8_*(unfulfilled)", ["8_1", "8_[3-9]"]),
        ("aftercorr:8_*(unfulfilled)", ["8_1", "8_[3-9]"]),
        ("afterok:8_4(unfulfilled)", ["8_[3-9]"]),
        ("afterok:8_2(failed)", ["8_2"]),
    ],
)
def test_dependencies_on_arrays(text: str, names: list[str]) -> None:
    """A task that has left the queue is not the others, which still wait."""
    tasks = lab.running("9", "c1", "a100=2", 30, job_id="8_1"), lab.row("8", job_id="8_[3-9]")
    made = lab.scene(lab.row("20", dependency=text, reason="Dependency"), *tasks)
    assert [b.name for b in blockers.dependency_blockers(made, {"8_2": "FAILED"})] == names


def test_tasks_of_an_array_wait_for_those_that_run() -> None:
    job = lab.row("5", job_id="4_[3-9%1]", reason="JobArrayTaskLimit")
    task = lab.running("4", "c1", "a100=2", 30, job_id="4_2", user="alice")
    said = details.collect_reason_facts(lab.scene(job, task, lab.running("8", "c2", "a100=2", 30)))
    assert said.details == ("at most 1 of its tasks run at a time",)
    assert [b.name for b in said.blockers] == ["4_2"]


def test_a_shared_gpu_is_not_free_as_a_whole() -> None:
    made = lab.scene(lab.row("5"))
    node = made.nodes[2]
    use = GresUse("shard", "h100", 2, (0, 1))
    shared = msgspec.structs.replace(node, uses=(use,))
    assert free_tres(node)["gres/gpu:h100"] == 4
    assert free_tres(shared)["gres/gpu:h100"] == 2
    assert free_tres(shared)["gres/gpu"] == 2


def test_a_gpu_that_is_held_whole_has_no_shards_left() -> None:
    node = lab.scene(lab.row("5")).nodes[2]
    whole = GresUse("gpu", "h100", 2, (0, 1))
    parts = GresUse("shard", "h100", 3, (2,), ((0, 4), (0, 4), (3, 4), (4, 4)))
    shared = msgspec.structs.replace(node, shards=PartCount(16, 7), uses=(whole, parts))
    assert free_tres(shared)["gres/shard"] == 1
    unused = msgspec.structs.replace(node, shards=PartCount(16, None))
    assert free_tres(unused)["gres/shard"] == 0


def test_only_nodes_that_the_job_may_use_count() -> None:
    said = details.collect_reason_facts(lab.scene(lab.row("5", requested_nodes="c1"))).details[0]
    assert said.endswith("1 node of partition gpu could run it")
    said = details.collect_reason_facts(
        lab.scene(lab.row("5"), asked=lab.asked(exclude="c[1-2]"))
    ).details[0]
    assert said.endswith("no node that it may use in partition gpu has that many")
    said = details.collect_reason_facts(lab.scene(lab.row("5", features="ib"))).details[0]
    assert said.endswith("no node that it may use in partition gpu has that many")


def test_memory_per_node_and_per_cpu_are_told_apart_by_the_total() -> None:
    tres = "cpu=4,mem=8G,node=1,gres/gpu=2,gres/gpu:a100=2"
    job = lab.row("5", tres=tres, cpus=4)
    per_node = rebuild_spec(lab.scene(job, asked=lab.asked(memory=8192, cpus_per_task=4)))
    per_cpu = rebuild_spec(lab.scene(job, asked=lab.asked(memory=2048, cpus_per_task=4)))
    assert per_node is not None
    assert per_cpu is not None
    assert (per_node.mem, per_node.mem_per_cpu) == ("8192M", None)
    assert (per_cpu.mem, per_cpu.mem_per_cpu) == (None, "2048M")


def test_a_job_without_a_number_of_nodes_has_a_spec() -> None:
    job = lab.row("5", nodes=0)
    spec = rebuild_spec(lab.scene(job, asked=lab.asked(gpus=Gpus(4, per="job"))))
    assert spec is not None
    assert spec.gpus == Gpus(4, per="job")


def test_what_a_spec_cannot_say_is_not_guessed() -> None:
    odd = lab.asked(odd=("gres/gpu:1",))
    assert rebuild_spec(lab.scene(lab.row("5"), asked=odd)) is None
    assert rebuild_spec(lab.scene(lab.row("5", job_id="5+0"))) is None
    assert rebuild_spec(lab.scene(lab.row("5"), asked=lab.asked(batch=False))) is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(20, "now"), (-20, "just now"), (720, "in 12 min"), (7200, "in 2 h"), (-300, "5 min ago")],
)
def test_times_are_said_with_their_distance(seconds: int, said: str) -> None:
    assert said in display.format_moment(NOW + seconds, NOW)


def test_a_start_that_has_passed_without_a_plan_is_no_start() -> None:
    def told(started: int, **asked: str) -> int | None:
        made = lab.scene(lab.row("5", started=started), asked=lab.asked(**asked))
        found = _start(made)
        return found.at if found else None

    assert told(NOW) is None
    assert told(NOW + 60) == NOW + 60
    assert told(NOW, planned_nodes="c2") == NOW
