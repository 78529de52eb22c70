"""Reading what a cluster is, from what scontrol printed on each release."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmkit.errors import ControllerDown, Refused, SlurmError
from slurmkit.formats import scontrol as slurm_text
from slurmkit.formats.tres import Gres
from slurmkit.state.capabilities import (
    CAPABILITY_COMMANDS,
    parse_capabilities,
    parse_nodes,
    parse_partitions,
    parse_reservations,
    read_capabilities,
)
from slurmkit.state.model import Capabilities, Reservation
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = ("22.05", "24.11", "26.05")


def recorded(release: str, name: str) -> str:
    return (RECORDED / release / f"{name}.txt").read_text("utf-8")


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(release: str) -> Capabilities:
    said: dict[str, str | None] = {
        name: recorded(release, f"limits/scontrol-{name}")
        for name in ("config", "nodes", "partitions", "licenses")
    }
    said |= {"mpi": recorded(release, "srun-mpi"), "srun": recorded(release, "srun-help")}
    return parse_capabilities(said, 1.0)


def test_the_cluster(cluster: Capabilities, release: str) -> None:
    assert cluster.release[:2] == tuple(map(int, release.split(".")))
    assert cluster.cluster_name == f"cap{release.replace('.', '')}"
    assert cluster.config["MaxArraySize"] == "1001"
    assert cluster.config["SchedulerParameters"] == "bf_interval=10,bf_continue"
    assert cluster.enforces("limits")
    assert not cluster.enforces("safe")
    assert cluster.licenses == {"matlab": 10, "ansys": 2}
    assert ("pmix" in (cluster.mpi or ())) == (release != "26.05")
    assert "pmi2" in (cluster.mpi or ())
    assert "container" in cluster.container_options
    assert cluster.hidden == ()


def test_gpus_of_every_kind(cluster: Capabilities) -> None:
    nodes = {node.name: node for node in cluster.nodes}
    assert nodes["c1"].gres == (Gres("gpu", "a100", 8),)
    assert nodes["c3"].gres == (Gres("gpu", "h100", 4), Gres("shard", "h100", 16))
    assert nodes["c4"].gres == (Gres("gpu", None, 4),)
    assert nodes["c5"].gres == (Gres("gpu", "a100_3g.20gb", 2), Gres("gpu", "a100_1g.5gb", 4))
    assert [gres.is_mig for gres in nodes["c5"].gres] == [True, True]
    assert nodes["c6"].gres == (Gres("gpu", "a100", 2), Gres("mps", "a100", 200))
    assert nodes["c7"].gres == ()


def test_a_node(cluster: Capabilities) -> None:
    node = next(node for node in cluster.nodes if node.name == "c4")
    assert (node.cpus, node.sockets, node.cores_per_socket, node.threads_per_core) == (64, 2, 32, 1)
    assert (node.memory, node.features, node.partitions) == (512000, ("h200",), ("untyped",))
    assert node.usable


def test_a_reason_cannot_stand_for_a_fact(cluster: Capabilities) -> None:
    """The recorded reason of c6 ends in `State=IDLE Gres=gpu:99`."""
    node = next(node for node in cluster.nodes if node.name == "c6")
    assert node.states[:2] == ("IDLE", "DRAIN")
    assert not node.usable
    assert node.count("gpu") == 2
    assert node.reason.startswith("fan = 0 State=IDLE Gres=gpu:99 [root@")


def test_partitions(cluster: Capabilities) -> None:
    found = {partition.name: partition for partition in cluster.partitions}
    assert list(found) == ["gpu", "untyped", "mig", "mps", "cpu"]
    assert cluster.default_partition == found["gpu"]
    gpu = found["gpu"]
    assert (gpu.max_time, gpu.default_time, gpu.max_nodes) == (7 * 1440, 60, None)
    assert (gpu.allow_accounts, gpu.allow_qos, gpu.allow_groups, gpu.qos) == (None,) * 4
    assert gpu.nodes == ("c1", "c2", "c3")
    assert gpu.billing_weights == {"cpu": 1.0, "mem": 0.125 / 1024, "gres/gpu": 16.0}
    assert gpu.settings["OverSubscribe"] == "NO"


def test_limits_of_partitions(cluster: Capabilities) -> None:
    mig, mps = cluster.partition("mig"), cluster.partition("mps")
    assert mig is not None
    assert mps is not None
    assert (mig.allow_accounts, mig.deny_accounts) == (("vision", "climate"), ())
    assert (mig.allow_qos, mig.deny_qos, mig.qos) == (None, ("scavenger",), "high")
    assert (mig.max_nodes, mig.max_time, mig.allow_groups) == (1, 30, ("vision",))
    assert (mig.def_mem_per_node, mig.def_mem_per_cpu) == (2048, None)
    assert (mps.deny_accounts, mps.allow_qos) == (("genomics",), ("high", "normal"))
    assert (mps.state, mps.min_nodes, mps.max_time, mps.max_cpus_per_node) == ("DRAIN", 1, None, 32)
    assert (mps.def_mem_per_cpu, mps.max_mem_per_cpu, mps.max_mem_per_node) == (1000, 4096, None)


def test_reservations(release: str) -> None:
    found = {
        each.name: each
        for each in parse_reservations(recorded(release, "limits/scontrol-reservations"))
    }
    alice = found["alice_res"]
    assert (alice.users, alice.nodes, alice.state) == (("alice",), ("c4",), "ACTIVE")
    assert alice.end - alice.start == 2 * 3600
    assert found["notbob"].users == ("-bob",)
    assert (found["maint"].groups, found["maint"].flags[:2]) == (
        ("vision", "people"),
        ("MAINT", "IGNORE_JOBS"),
    )
    assert found["maint"].state == "INACTIVE"
    assert found["maint"].nodes == tuple(f"c{number}" for number in range(1, 8))
    if release != "22.05":  # which cannot reserve GPUs by number
        assert found["gpus"].tres == {"cpu": 8, "gres/gpu": 4}


def test_no_reservations() -> None:
    assert parse_reservations("No reservations in the system\n") == ()


@pytest.mark.parametrize(
    ("reservation", "admitted", "refused"),
    [
        ({"users": ("alice",)}, ["alice"], ["bob"]),
        ({"users": ("-bob",)}, ["alice", "carol"], ["bob"]),
        ({"accounts": ("vision",)}, ["alice", "bob", "carol"], ["chen"]),
        ({"accounts": ("-vision",)}, ["chen"], ["alice", "carol"]),
        ({"users": ("-bob",), "accounts": ("vision",)}, ["alice", "carol"], ["bob", "chen"]),
        # Named people in named accounts: not in the accounts below them.
        ({"users": ("alice", "carol"), "accounts": ("vision",)}, ["alice"], ["bob", "carol"]),
        ({"users": ("alice", "chen"), "accounts": ("-vision",)}, ["chen"], ["alice", "bob"]),
        ({"groups": ("imaging",)}, ["bob"], ["alice", "chen"]),
        ({}, ["alice", "chen"], []),
    ],
)
def test_who_may_use_a_reservation(
    reservation: dict[str, tuple[str, ...]], admitted: list[str], refused: list[str]
) -> None:
    accounts = {
        "alice": ("vision", "root"),
        "bob": ("vision", "root"),
        "carol": ("child", "vision", "root"),
        "chen": ("climate", "root"),
    }
    groups = {"bob": ["people", "imaging"]}
    found = Reservation(name="r", start=0, end=1, **reservation)
    said = {user: found.admits(user, accounts[user], groups.get(user, ())) for user in accounts}
    assert {user for user in admitted if not said[user]} == set()
    assert {user for user in refused if said[user]} == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:a100:8(S:0-1)", [Gres("gpu", "a100", 8)]),
        ("gpu:4", [Gres("gpu", None, 4)]),
        ("gpu", [Gres("gpu", None, 1)]),
        ("gpu:1080:4", [Gres("gpu", "1080", 4)]),
        (
            "gpu:A100-SXM4-80GB:8(S:0,1),nic:2",
            [Gres("gpu", "A100-SXM4-80GB", 8), Gres("nic", None, 2)],
        ),
        ("bandwidth:lustre:no_consume:4G", [Gres("bandwidth", "lustre", 4 * 1024**3)]),
        ("(null)", []),
        ("", []),
    ],
)
def test_gres(text: str, found: list[Gres]) -> None:
    assert slurm_text.parse_gres(text) == tuple(found)


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("IDLE", ("IDLE",)),
        ("MIXED+DRAIN+NOT_RESPONDING", ("MIXED", "DRAIN", "NOT_RESPONDING")),
        ("DOWN*", ("DOWN", "NOT_RESPONDING")),
        ("IDLE~+CLOUD", ("IDLE", "CLOUD", "POWERED_DOWN")),
    ],
)
def test_states(text: str, states: tuple[str, ...]) -> None:
    assert slurm_text.parse_states(text) == states


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("CPU=1.0,Mem=0.25G", {"cpu": 1.0, "mem": 0.25 / 1024}),
        ("Mem=1,GRES/gpu:A100=2", {"mem": 1.0, "gres/gpu:a100": 2.0}),
        ("Mem=1T,cpu=2K", {"mem": 1 / 1024**2, "cpu": 2 / 1024}),
        ("(null)", {}),
    ],
)
def test_weights(text: str, weights: dict[str, float]) -> None:
    """Memory is counted in MiB, so a weight per G is 1024 times less per unit."""
    assert slurm_text.parse_weights(text) == weights


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("500G", 512000), ("1.50T", 1572864), ("512K", 1), ("UNLIMITED", None), ("0", 0)],
)
def test_amount(text: str, value: int | None) -> None:
    assert slurm_text.parse_amount(text) == value


@pytest.mark.parametrize("text", ["41e400", "inf", "x", "1.xG"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of float, too
        slurm_text.parse_amount(text)


def test_tres() -> None:
    assert slurm_text.parse_tres_counts("cpu=4,mem=1.50G,gres/gpu:a100=2") == {
        "cpu": 4,
        "mem": 1536,
        "gres/gpu:a100": 2,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [("7-00:00:00", 10080), ("01:30:00", 90), ("UNLIMITED", None), ("NONE", None), ("30", 30)],
)
def test_minutes(text: str, value: int | None) -> None:
    assert slurm_text.parse_minutes(text) == value


@settings(deadline=None)
@given(st.text(st.characters(blacklist_characters="\n"), max_size=40))
def test_any_reason_is_one_value(reason: str) -> None:
    text = recorded("24.11", "scontrol-nodes").splitlines()[0]
    (plain,) = parse_nodes(text)
    (node,) = parse_nodes(f"{text} Reason={reason} [root@1]")
    assert (node.states, node.gres, node.memory) == (plain.states, plain.gres, plain.memory)


def test_memory_that_jobs_cannot_use() -> None:
    text = recorded("24.11", "scontrol-nodes").splitlines()[0]
    (node,) = parse_nodes(text.replace("Boards=1", "Boards=1 CoreSpecCount=2 MemSpecLimit=12000"))
    assert node.memory == 500000


def test_no_partition_has_no_nodes() -> None:
    text = recorded("24.11", "scontrol-partitions").splitlines()[0]
    (empty,) = parse_partitions(text.replace("Nodes=c[1-3]", "Nodes=(null)"))
    assert empty.nodes == ()


def answer(argv: list[str]) -> str:
    what = next(name for name, asked in CAPABILITY_COMMANDS.items() if list(asked) == list(argv))
    files = {"mpi": "srun-mpi", "srun": "srun-help"}
    return recorded("24.11", files.get(what, f"scontrol-{what}"))


def fake(**failing: SlurmError) -> FakeSlurm:
    def said(argv: list[str], _: str | None) -> str:
        for word, error in failing.items():
            if word in " ".join(argv):
                raise error
        return answer(argv)

    return FakeSlurm({"scontrol": said, "srun": said})


def test_a_cluster_is_asked_once_for_each_thing() -> None:
    slurm = fake()
    assert len(read_capabilities(slurm).nodes) == 7
    assert sorted(map(tuple, slurm.asked)) == sorted(CAPABILITY_COMMANDS.values())


def test_what_private_data_hides_is_said(release: str) -> None:
    denied = Refused(recorded(release, "limits/scontrol-nodes-private").strip())
    found = read_capabilities(fake(node=denied))
    assert found.nodes == ()
    assert found.hidden == ("nodes are unknown: slurmctld does not show them to you (PrivateData)",)


def test_srun_that_cannot_say() -> None:
    found = read_capabilities(fake(mpi=Refused("no such plugin"), help=Refused("no")))
    assert (found.mpi, found.container_options) == (None, ())


@pytest.mark.parametrize("word", ["config", "node", "partition"])
def test_a_controller_that_is_down(word: str) -> None:
    with pytest.raises(ControllerDown):
        read_capabilities(fake(**{word: ControllerDown("no answer")}))


def test_what_cannot_be_read_is_an_error() -> None:
    text = recorded("24.11", "scontrol-nodes").replace("RealMemory=512000", "RealMemory=much")
    slurm = FakeSlurm(
        {
            "scontrol": lambda argv, _: text if "node" in argv else answer(list(argv)),
            "srun": lambda *_: "",
        }
    )
    with pytest.raises(SlurmError, match=r"cannot be read: .*much"):
        read_capabilities(slurm)
