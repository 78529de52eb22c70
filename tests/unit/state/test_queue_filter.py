"""What the queue is limited to, and what squeue would have let pass in silence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from queue_lines import job

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadInput, ControllerDown, Refused
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit.testing import FakeSlurm, squeue_text

PARTITIONS = "PartitionName=gpu AllowGroups=ALL\nPartitionName=cpu AllowGroups=ALL\n"
QOS = (
    "Current Association Manager state\nQOS Records\nQOS=normal(1) UsageRaw=0\nQOS=high(2) Usage\n"
)
ROOT = "Association Records\nClusterName=lab Account=root UserName= Partition= \n"
NO_STATE = (
    "squeue: error: Invalid job state specified: foo; squeue: error: Valid job states"
    " include: pending,running"
)
VISION = "ClusterName=lab Account=vision UserName= Partition= \n"


def scontrol(argv: Sequence[str], stdin: str | None) -> str:
    if "partition" in argv:
        return PARTITIONS
    if "reservation" in argv:
        return "ReservationName=maint StartTime=1\n"
    if "flags=qos" in argv:
        return QOS
    return ROOT + (VISION if "accounts=vision,root" in argv else "")


def lab(*jobs: dict[str, str]) -> FakeSlurm:
    return FakeSlurm({"squeue": lambda argv, _: squeue_text(argv, jobs), "scontrol": scontrol})


def test_every_condition_is_an_option_of_squeue() -> None:
    only = QueueFilter(
        users=("alice", "10012"),
        partitions=("gpu", "cpu"),
        accounts=("vision",),
        qos=("normal",),
        states=("PD", "RUNNING"),
        names=("train", "two words"),
        nodelist="c[1-3],c5",
        reservation="maint",
        job_ids=("12", "13_4"),
        array=True,
    )
    slurm = lab(job(Reservation="maint"), job("13_4", Partition="cpu"))
    read_queue(slurm, only)
    (argv,) = (argv for argv in slurm.asked if argv[0] == "squeue")
    assert argv[4:] == [
        "--user=alice,10012",
        "--partition=gpu,cpu",
        "--account=vision",
        "--qos=normal",
        "--states=PD,RUNNING",
        "--name=train,two words",
        "--jobs=12,13_4",
        "--nodelist=c[1-3],c5",
        "--reservation=maint",
        "--all",
        "--array",
    ]


def test_my_jobs() -> None:
    slurm = lab()
    read_queue(slurm, QueueFilter(me=True))
    assert slurm.asked[0][-1] == "--me"


@pytest.mark.parametrize(
    ("only", "shown"),
    [
        (QueueFilter(me=True), True),
        (QueueFilter(users=("alice",)), True),
        (QueueFilter(reservation="maint"), True),
        (QueueFilter(hidden=True), True),
        (QueueFilter(), False),
        (QueueFilter(states=("all",)), False),
        (QueueFilter(job_ids=("12",)), False),  # --jobs includes --all
    ],
)
def test_own_jobs_include_those_in_hidden_partitions(only: QueueFilter, shown: bool) -> None:
    assert ("--all" in only.options()) == shown


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"users": ("",)}, "--user may not be empty"),
        ({"users": ("alice", " ")}, "--user may not be empty"),
        ({"names": ("a,b",)}, "has a character that squeue cannot search for"),
        ({"names": ("a\nb",)}, "has a character that squeue cannot search for"),
        ({"names": ("a\0b",)}, "has a character that squeue cannot search for"),
        ({"nodelist": ""}, "--nodelist may not be empty"),
        ({"reservation": "a,b"}, "has a character that squeue cannot search for"),
        ({"job_ids": ("12", "x")}, "not a job id"),
        ({"job_ids": ("",)}, "job id may not be empty"),
        ({"me": True, "users": ("bob",)}, "either --me or --user"),
    ],
)
def test_what_cannot_be_meant(given: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        QueueFilter(**given)


def test_nobody_is_not_everybody() -> None:
    with pytest.raises(BadInput, match="may not be empty"):
        Cluster(lab()).queue(user="")


@pytest.mark.parametrize(
    ("only", "says"),
    [
        (QueueFilter(partitions=("gpu", "gpo")), "--partition gpo: .* there are gpu, cpu"),
        (QueueFilter(qos=("hgih",)), "--qos hgih: .* no such QOS; there are normal, high"),
        (QueueFilter(accounts=("physics",)), "--account physics: .* sacctmgr show account"),
        (QueueFilter(reservation="mnt"), "--reservation mnt: .* there are maint"),
    ],
)
def test_what_the_cluster_does_not_have(only: QueueFilter, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read_queue(lab(job()), only)


@pytest.mark.parametrize(
    "only",
    [
        QueueFilter(partitions=("gpu", "cpu")),
        QueueFilter(qos=("HIGH",)),
        QueueFilter(accounts=("Vision",)),
        QueueFilter(reservation="maint"),
    ],
)
def test_what_only_has_no_jobs(only: QueueFilter) -> None:
    assert read_queue(lab(), only).rows == ()


def test_names_that_rows_have_are_not_asked_about() -> None:
    slurm = lab(job(Partition="cpu,gpu", QOS="High"))
    only = QueueFilter(partitions=("gpu",), qos=("high",), accounts=("VISION",))
    assert len(read_queue(slurm, only).rows) == 1
    assert [argv[0] for argv in slurm.asked] == ["squeue"]


@pytest.mark.parametrize("shown", ["", "No associations currently cached in Slurm.\n"])
def test_what_slurm_does_not_show_us_passes(shown: str) -> None:
    """A site may hide accounts and QOS (PrivateData), or keep none."""
    slurm = FakeSlurm({"squeue": lambda a, s: "", "scontrol": lambda a, s: shown})
    assert read_queue(slurm, QueueFilter(accounts=("x",), qos=("y",))).rows == ()


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("squeue: error: Invalid user: nope; squeue: error: x", "--user nope: there is no such"),
        ("squeue: error: Invalid node name c99", "no node c99; see: sinfo -N"),
        ("squeue: error: 'c[1' invalid entry for --nodelist", r"--nodelist c\[1: not a list"),
        (
            NO_STATE,
            "--states foo: not a state; give all by itself, or one or more of pending,running$",
        ),
    ],
)
def test_what_squeue_refuses(said: str, says: str) -> None:
    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        raise Refused(said)

    with pytest.raises(BadInput, match=says):
        read_queue(FakeSlurm({"squeue": squeue}))


@pytest.mark.parametrize("error", [Refused("something else"), ControllerDown("down")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        raise error

    with pytest.raises(type(error), match=str(error)):
        read_queue(FakeSlurm({"squeue": squeue}))
