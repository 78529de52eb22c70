"""What would start sooner: rooms over time, candidates, the controller's word, commands."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

import msgspec
import pytest
import why_scene as lab
from checked_requests import request, with_qos
from why_scene import NOW

from slurmkit.diagnose import alternatives, respec
from slurmkit.diagnose.free_resources import NodeTimelines, ResourceNeed
from slurmkit.diagnose.limits_reached import would_wait_for_limit
from slurmkit.diagnose.respec import rebuild_spec
from slurmkit.diagnose.snapshot import PendingSnapshot
from slurmkit.errors import Refused
from slurmkit.spec.gpus import Gpus
from slurmkit.state.model import Limits, LimitUsage, Qos
from slurmkit.testing import FakeSlurm

FULL = (
    lab.running("1", "c1", "a100=8", 30),
    lab.running("2", "c2", "a100=8", 60),
    lab.running("3", "c3", "h100=4", 90),
)


def need(gpus: int = 2, nodes: int = 1, minutes: int = 60, **values: object) -> ResourceNeed:
    usual = {
        "nodes": nodes,
        "per_node": {"cpu": 1, "mem": 1024, "gres/gpu": gpus, "gres/gpu:a100": gpus},
        "seconds": minutes * 60,
        "names": frozenset({"c1", "c2"}),
    }
    return ResourceNeed(**{**usual, **values})  # type: ignore[arg-type]


# --- rooms over time -----------------------------------------------------------------------------


def test_there_is_room_once_enough_jobs_have_ended() -> None:
    windows = NodeTimelines(lab.scene(lab.row("5"), *FULL), {})
    far = NOW + 86400
    assert windows.earliest_start(need(), far) == NOW + 1800
    assert windows.earliest_start(need(nodes=2), far) == NOW + 3600
    assert windows.earliest_start(need(), NOW + 1800) is None
    assert windows.earliest_start(need(gpus=9), far) is None
    assert windows.count(need()) == 0


def test_nodes_that_backfill_plans_for_others_are_kept_whole_for_them() -> None:
    """As Slurm does, however little of them is wanted."""
    plan = lab.row("4", started=NOW + 1800, time_limit="30:00", tres="cpu=1,gres/gpu=1")
    windows = NodeTimelines(lab.scene(lab.row("5"), plan), {"4": "c[1-2]"})
    far = NOW + 86400
    assert windows.earliest_start(need(minutes=29), far) == NOW
    assert windows.earliest_start(need(minutes=31), far) == NOW + 3600
    assert windows.longest(need(minutes=600)) == 1800


def test_plans_of_jobs_that_come_after_it_do_not_count() -> None:
    plan = lab.row("4", started=NOW + 1800)
    made = lab.scene(lab.row("5"), plan)
    windows = NodeTimelines(made, {"4": "c[1-2]"}, comes_first=lambda row: row.raw_id != "4")
    assert windows.earliest_start(need(minutes=600), NOW + 86400) == NOW


def test_a_reservation_closes_its_nodes() -> None:
    known = lab.with_reservation(lab.standing(), lab.maintenance(30, "c1", "c2"))
    windows = NodeTimelines(lab.scene(lab.row("5"), standing=known), {})
    assert windows.earliest_start(need(minutes=29), NOW + 86400) == NOW
    assert windows.earliest_start(need(minutes=60), NOW + 86400) == NOW + 5400
    inside = lab.scene(lab.row("5", reservation="maint"), standing=known)
    assert NodeTimelines(inside, {}).earliest_start(need(), NOW + 86400) == NOW


def test_what_would_be_preempted_is_as_good_as_free() -> None:
    scavenger = lab.running("1", "c1", "a100=8", 600, qos="scavenger")
    made = lab.scene(lab.row("5"), scavenger, lab.running("2", "c2", "a100=8", 600))
    windows = NodeTimelines(made, {}, gives_way=lambda row: row.qos == "scavenger")
    assert windows.earliest_start(need(), NOW + 1) == NOW


def test_who_wants_nodes_alone_waits_for_all_of_them() -> None:
    windows = NodeTimelines(lab.scene(lab.row("5"), lab.running("1", "c1", "a100=1", 30)), {})
    alone = need(exclusive=True, names=frozenset({"c1"}))
    assert windows.earliest_start(alone, NOW + 86400) == NOW + 1800
    assert windows.earliest_start(need(names=frozenset({"c1"})), NOW + 1) == NOW


def test_a_job_past_its_end_or_without_one_frees_nothing_now() -> None:
    over = lab.running("1", "c1", "a100=8", -5)
    endless = lab.running("2", "c2", "a100=8", 30, time_limit="UNLIMITED")
    windows = NodeTimelines(lab.scene(lab.row("5"), over, endless), {})
    assert windows.earliest_start(need(), NOW + 86400) == NOW + 60
    assert windows.earliest_start(need(nodes=2), NOW + 10**9) is None


# --- the whole search ----------------------------------------------------------------------------


class Controller:
    """slurmctld as `sbatch --test-only` shows it: refuses some, else says `start`."""

    def __init__(self, start: int = NOW, refuses: str = "nothing") -> None:
        self.start, self.refuses = start, refuses
        self.slurm = FakeSlurm({"sbatch": self.sbatch})

    def sbatch(self, argv: Sequence[str], stdin: str | None) -> str:
        assert "--test-only" in argv
        assert stdin is not None
        assert stdin.startswith("#!")
        if self.refuses in " ".join(argv):
            raise Refused("allocation failure")
        return f"sbatch: Job 9 to start at {self.start} using 1 processors on nodes c4"

    @property
    def asked(self) -> list[list[str]]:
        return [argv for argv in self.slurm.asked if argv[0] == "sbatch"]


@pytest.fixture(autouse=True)
def as_alice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "current_user", lambda _: "alice")


def find(
    made: PendingSnapshot, controller: Controller | None = None, start: int | None = None
) -> alternatives.FoundAlternatives:
    return alternatives.find_alternatives((controller or Controller()).slurm, made, start)


def changes(found: alternatives.FoundAlternatives) -> list[dict[str, str]]:
    return [dict(each.changes) for each in found.alternatives]


def test_other_gpus_and_places_that_are_free_are_offered() -> None:
    full = FULL[:2]
    found = find(lab.scene(lab.row("5"), *full), start=NOW + 1800)
    assert {"gpus-per-node": "h100:2"} in changes(found)
    assert {"partition": "untyped", "gpus-per-node": "2"} in changes(found)
    assert all(each.start == NOW for each in found.alternatives)
    untyped = next(e for e in found.alternatives if dict(e.changes).get("partition") == "untyped")
    assert "does not know the type" in untyped.notes[0]


def test_the_controller_is_asked_five_times_at_most_and_its_no_counts() -> None:
    controller = Controller(refuses="--partition=untyped")
    found = find(lab.scene(lab.row("5"), *FULL[:2]), controller, NOW + 1800)
    assert {"gpus-per-node": "h100:2"} in changes(found)
    assert not any("partition" in change for change in changes(found))
    later = Controller(start=NOW + 10**6)
    assert find(lab.scene(lab.row("5"), *FULL[:2]), later, NOW + 1800).alternatives
    for one in (controller, later):
        assert 0 < len(one.asked) <= 5


def test_what_the_controller_finds_later_than_the_job_itself_is_not_offered() -> None:
    class Strict(Controller):
        def sbatch(self, argv: Sequence[str], stdin: str | None) -> str:
            changed = "--gpus-per-node=a100:2" not in argv
            self.start = NOW + (9000 if changed else 5000)
            return super().sbatch(argv, stdin)

    found = find(lab.scene(lab.row("5"), *FULL[:2]), Strict(), NOW + 1800)
    assert found.alternatives == ()
    assert found.why_none == "nothing found that would start sooner"


def test_fewer_nodes_are_offered_where_they_have_room() -> None:
    job = lab.row("5", nodes=2, cpus=2, tres="cpu=2,mem=2G,node=2,gres/gpu=4,gres/gpu:a100=4")
    made = lab.scene(job, FULL[0], FULL[2], asked=lab.asked(tasks=2, max_nodes=2))
    found = find(made, start=NOW + 1800)
    assert {"nodes": "1"} in changes(found)
    assert found.alternatives[0].command == "scontrol update JobId=5 NumNodes=1"


def test_a_shorter_run_is_offered_where_it_fits_before_a_plan() -> None:
    plan = lab.row("4", priority=200, started=NOW + 1800, reason="Resources")
    made = lab.scene(lab.row("5", reason="Priority"), plan, FULL[2], planned={"4": "c[1-2]"})
    found = find(made, start=NOW + 7200)
    assert {"time": "28:00"} in changes(found)
    timed = next(each for each in found.alternatives if dict(each.changes) == {"time": "28:00"})
    assert timed.command == "slurmkit update 5 --time=28:00"


def test_only_what_starts_now_is_sooner_than_nobody_knows_when() -> None:
    """A limit that others use up: Slurm's own estimate does not know when they end."""
    held = lab.row("5", account="genomics", reason="AssocGrpGRES")
    found = find(lab.scene(held, FULL[0]), start=NOW + 86400)
    assert {"account": "vision"} in changes(found)
    account = next(e for e in found.alternatives if "account" in dict(e.changes))
    assert account.command == "scontrol update JobId=5 Account=vision"
    assert "charged to account vision" in account.notes
    full = find(lab.scene(held, *FULL[:2], lab.running("9", "c4", "x=4", 30)), start=NOW + 86400)
    assert all(each.start <= NOW + 120 for each in full.alternatives)


def test_a_limit_of_the_request_itself_is_offered_as_a_change() -> None:
    job = lab.row("5", reason="PartitionTimeLimit", time_limit="8-00:00:00")
    found = find(lab.scene(job))
    assert {"time": "7-00:00:00"} in changes(found)


def test_a_higher_qos_preempts_who_gives_way() -> None:
    full = [msgspec.structs.replace(one, qos="scavenger") for one in FULL]
    qos = (
        Qos(name="normal", priority=100),
        Qos(name="high", priority=1000, preempts=("scavenger",)),
        Qos(name="scavenger"),
    )
    found = find(lab.scene(lab.row("5"), *full, standing=lab.standing(qos=qos)), start=NOW + 1800)
    assert {"qos": "high"} in changes(found)


@pytest.mark.parametrize(
    ("limits", "usage", "offered"),
    [
        (Limits(grp_tres={"gres/gpu": 4}), LimitUsage(tres={"gres/gpu": 2}), True),
        (Limits(grp_tres={"gres/gpu": 4}), LimitUsage(tres={"gres/gpu": 3}), False),
        (Limits(grp_tres={"cpu": 8}), LimitUsage(tres={"cpu": 8}), False),
        (Limits(grp_jobs=3), LimitUsage(jobs=3), False),
        (Limits(grp_tres={"gres/gpu": 1}), LimitUsage(), False),
    ],
)
def test_a_qos_whose_group_limit_is_used_up_is_not_offered(
    limits: Limits, usage: LimitUsage, offered: bool
) -> None:
    none = Limits(max_jobs=0)
    qos = (Qos(name="normal", limits=none), Qos(name="high", limits=limits, usage=usage))
    job = lab.row("5", reason="QOSMaxJobsPerUserLimit")
    found = find(lab.scene(job, standing=lab.standing(qos=qos)))
    assert ({"qos": "high"} in changes(found)) is offered


@pytest.mark.parametrize(("used", "waits"), [(4, False), (5, True), (8, True)])
def test_whole_nodes_count_in_full_against_what_is_left_of_a_limit(used: int, waits: bool) -> None:
    limits, usage = Limits(grp_tres={"gres/gpu": 12}), LimitUsage(tres={"gres/gpu": used})
    where = with_qos("normal", limits=limits, usage=usage)
    asked = request(where=where, qos="normal", exclusive=True, mem="1G")  # 4 or 8 GPUs
    assert would_wait_for_limit(asked) is waits
    shared = request(where=where, qos="normal", gpus=Gpus(1, "a100"), mem="1G")
    assert not would_wait_for_limit(shared)


@pytest.mark.parametrize(("priority", "offered"), [(50, False), (200, True)])
def test_a_lower_qos_is_not_offered_where_jobs_that_then_come_first_have_no_plan(
    priority: int, offered: bool
) -> None:
    """Such a job waited for Priority, although it was said to start now."""
    none = Limits(max_jobs=0)
    qos = (Qos(name="normal", priority=100, limits=none), Qos(name="high", priority=priority))
    behind = lab.row("4", priority=60, reason="Priority", user="bob")
    job = lab.row("5", reason="QOSMaxJobsPerUserLimit")
    found = find(lab.scene(job, behind, standing=lab.standing(qos=qos)))
    assert ({"qos": "high"} in changes(found)) is offered


def test_a_job_that_names_its_nodes_is_offered_the_others() -> None:
    job = lab.row("5", requested_nodes="c1")
    found = find(lab.scene(job, FULL[0]), start=NOW + 1800)
    named = next(each for each in found.alternatives if each.changes == (("nodelist", ""),))
    assert named.command == "scontrol update JobId=5 ReqNodeList="
    found = find(lab.scene(job, *FULL[:2]), start=NOW + 1800)
    assert {"partition": "untyped", "nodelist": "", "gpus-per-node": "2"} in changes(found)
    assert len(changes(found)) == len({tuple(sorted(c.items())) for c in changes(found)})


def test_a_partition_that_is_down_is_never_offered() -> None:
    known = lab.capabilities(
        partitions=(lab.partition("gpu"), lab.partition("untyped", state="DOWN"))
    )
    found = find(lab.scene(lab.row("5"), *FULL[:2], capabilities=known), start=NOW + 1800)
    assert found.alternatives
    assert not any(change.get("partition") == "untyped" for change in changes(found))


def test_where_a_job_before_it_has_no_plan_nothing_is_promised() -> None:
    ahead = lab.row("4", priority=200, reason="Priority")
    found = find(lab.scene(lab.row("5"), ahead, *FULL[:2]), start=NOW + 1800)
    assert {"gpus-per-node": "h100:2"} not in changes(found)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (lab.row("5", user="bob"), "only the job's own user, bob, is offered"),
        (lab.row("5", reason="JobHeldUser"), "would not help: it is on hold"),
        (lab.row("5", reason="Dependency"), "would not help"),
        (lab.row("5", job_id="5+1"), "cannot rebuild the options of this job"),
        (lab.row("5"), "enough is free now"),
        (lab.row("5", tres="cpu=3,mem=1G,node=1,gres/gpu=2"), "do not add up to the resources"),
    ],
)
def test_why_there_are_none(job: object, says: str) -> None:
    controller = Controller()
    found = find(lab.scene(job), controller)  # type: ignore[arg-type]
    assert says in found.why_none
    assert found.alternatives == ()
    assert controller.asked == []


def test_where_other_jobs_are_hidden_nothing_is_promised() -> None:
    known = lab.capabilities(config=lab.CONFIG | {"PrivateData": "accounts,jobs"})
    found = find(lab.scene(lab.row("5"), *FULL[:2], capabilities=known), start=NOW + 1800)
    assert "PrivateData" in found.why_none


def test_where_slurm_sees_what_we_do_not_nothing_is_offered() -> None:
    found = find(lab.scene(lab.row("5")), start=NOW + 3600)
    assert "Slurm plans a later start" in found.why_none


# --- commands ------------------------------------------------------------------------------------


def command(made: PendingSnapshot, *pairs: tuple[str, str]) -> str:
    spec = rebuild_spec(made)
    assert spec is not None
    return respec.change_command(made, spec, pairs)


def test_an_array_is_changed_as_a_whole() -> None:
    made = lab.scene(lab.row("5", job_id="5_[0-9%2]"))
    assert command(made, ("time", "10:00")) == "slurmkit update 5 --time=10:00"
    one = lab.scene(lab.row("7", job_id="5_3"))
    assert command(one, ("account", "x")) == "scontrol update JobId=5_3 Account=x"


def test_only_the_options_of_the_script_itself_are_taken_out() -> None:
    head, rest = "#!/bin/bash\n#SBATCH -n 2\n\n  # a note\n", "cat <<E\n#SBATCH -n 4\nE\n"
    script = f"{head}#SBATCH -t 5\n{rest}"
    done = subprocess.run(
        ["sed", respec._NO_OPTIONS], input=script, capture_output=True, text=True, check=True
    )
    assert done.stdout == head.replace("#SBATCH -n 2\n", "") + rest


def test_amounts_are_said_as_scontrol_wants_them() -> None:
    made = lab.scene(lab.row("5"))
    said = command(made, ("mem", "8G"), ("partition", "x"))
    assert said == "scontrol update JobId=5 MinMemoryNode=8192 Partition=x"


def test_the_job_is_submitted_anew_for_other_gpus_and_on_old_releases_nodes() -> None:
    """srun would ask for the old GPUs; 22.05 keeps the old number of tasks."""
    assert "sbatch" not in command(lab.scene(lab.row("5")), ("nodes", "2"))
    assert "sbatch" in command(lab.scene(lab.row("5")), ("gpus-per-node", "h100:2"))
    job = lab.row("5", name="my job; rm -rf ~", comment="a 'b'", job_id="5_[1-3]")
    old = lab.capabilities(release=(22, 5, 8))
    made = lab.scene(job, capabilities=old, asked=lab.asked(gpus=Gpus(2, "a100"), error="/e"))
    assert command(made, ("time", "10")) == "slurmkit update 5 --time=10"
    assert "sbatch" in command(made, ("nodes", "2"))
    said = command(made, ("gpus-per-node", "h100:2"))
    fetch, submit, cancel = said.split(" && ")  # nothing is lost where a step fails
    assert fetch.startswith("scontrol write batch_script 5 - | sed '")
    assert fetch.endswith("' > job-5.sh")
    assert cancel == "scancel 5"
    words = shlex.split(submit)
    assert words[0] == "sbatch"
    assert words[-1] == "job-5.sh"
    assert "--job-name=my job; rm -rf ~" in words
    assert "--comment=a 'b'" in words
    assert "--array=1-3" in words
    assert "--gpus-per-node=h100:2" in words
    assert "--error=/e" in words
