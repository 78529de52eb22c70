"""Which rank keeps the others waiting, from what /proc showed of each."""

from __future__ import annotations

import random
from typing import Any

import pytest

from slurmkit.diagnose.probe import ProbedNode, ProcessFacts, WatchedNode
from slurmkit.diagnose.ranks import (
    JobRank,
    describe_state,
    find_ranks,
    rank_findings,
    suspects,
    usual_wait,
    wait_kind,
)

SECONDS = 2.0
LOCK = {"waits": {"futex_do_wait": 8}}
ROLES: dict[str, dict[str, Any]] = {
    "waits": LOCK,
    "stopped": {"state": "T", "states": {"T": 8}, "waits": {"": 8}},
    "blocked": {
        "state": "D",
        "states": {"D": 8},
        "waits": {"nfs_wait_bit_killable": 8},
        "blocked": ("nfs_wait_bit_killable",),
    },
    "loader": {"waits": {"hrtimer_nanosleep": 7, "futex_do_wait": 1}},
    "busy": {"state": "R", "states": {"R": 8}, "waits": {"": 8}, "cpu": 1.9},
}


def process(pid: int, **values: Any) -> ProcessFacts:
    usual: dict[str, Any] = {
        "pid": pid, "parent": 1, "rank": "", "task": "", "step": "0", "name": "python3",
        "command": "python3 train.py", "state": "S", "states": {"S": 8}, "waits": {}, "blocked": (),
        "cpu": 0.0, "cpu_total": 10.0, "read": 0, "rss": 1 << 20, "threads": 2, "tracer": 0,
    }  # fmt: skip
    return ProcessFacts(**usual | values)


def ranks_of(roles: list[str], per_node: int = 4, **others: Any) -> tuple[JobRank, ...]:
    nodes: dict[str, list[ProcessFacts]] = {}
    for rank, role in enumerate(roles):
        one = process(100 + rank, rank=str(rank), **{**ROLES[role], **others})
        nodes.setdefault(f"c{rank // per_node}", []).append(one)
    return find_ranks({name: node(found) for name, found in nodes.items()})


def node(processes: list[ProcessFacts]) -> ProbedNode:
    return ProbedNode(
        WatchedNode(
            began=0, seconds=SECONDS, left_out=0, memory_limit=None, processes=tuple(processes)
        )
    )


def findings(ranks: tuple[JobRank, ...]) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in rank_findings(ranks, 0)]


@pytest.mark.parametrize("seed", range(100))
def test_the_one_that_differs_is_found_among_any_number(seed: int) -> None:
    """The scene is made from its answer, so the answer is known."""
    chance = random.Random(seed)
    count, role = chance.randint(3, 64), chance.choice(sorted(ROLES))
    odd = chance.randrange(count)
    roles = ["waits"] * count
    roles[odd] = role
    ranks = ranks_of(roles, per_node=chance.randint(1, 8))
    found = findings(ranks)
    if role == "waits":
        assert found == []
        return
    ((kind, text),) = found
    assert kind == role
    assert text.startswith(f"{ranks[odd].title} ")
    assert [f"rank {n} " in text for n in range(count)].count(True) == 1
    if role != "blocked":
        assert f"the {count - 1} others" in text


def test_a_stopped_rank_and_who_waits_for_it() -> None:
    ((_, text),) = findings(ranks_of(["waits", "stopped", "waits"]))
    assert text == "rank 1 on c0 (pid 101) is stopped (SIGSTOP), and the 2 others wait for it"
    ((_, text),) = findings(ranks_of(["busy", "stopped"]))
    assert text.endswith("is stopped (SIGSTOP); the other uses its CPU, perhaps to wait")
    ((_, text),) = findings(ranks_of(["stopped", "stopped", "waits"]))
    assert text.endswith("are stopped (SIGSTOP), and the other waits for them")


def test_a_process_that_a_profiler_holds_for_a_moment_is_not_stopped() -> None:
    seen = {"state": "t", "states": {"R": 6, "t": 2}, "tracer": 9}
    assert findings(find_ranks({"c1": node([process(1, rank="0", **seen)])})) == []


def test_one_that_reads_without_pause_is_not_blocked() -> None:
    reads = {"state": "D", "states": {"D": 8}, "waits": {"folio_wait_bit": 8}, "read": 1 << 28}
    assert findings(find_ranks({"c1": node([process(1, rank="0", **reads)])})) == []


def test_ranks_that_spin_wait_for_the_one_that_sleeps() -> None:
    ((kind, text),) = findings(ranks_of(["busy", "waits", "busy", "busy"]))
    assert kind == "asleep"
    assert text.startswith("rank 1 on c0 (pid 101) waits for a lock or another thread")
    assert "the 3 others use their CPUs" in text


@pytest.mark.parametrize(
    "roles",
    [["busy"] * 4, ["waits"] * 4, ["loader"] * 4, ["busy", "busy", "waits", "waits"], ["waits"]],
)
def test_ranks_that_do_alike_are_no_finding(roles: list[str]) -> None:
    assert findings(ranks_of(roles)) == []


def test_a_loader_beside_the_main_process_is_found() -> None:
    mains = [process(10 + n, rank=str(n), waits={"do_poll": 8}) for n in range(4)]
    helpers = [
        process(20 + n, parent=10 + n, rank=str(n), waits={"pipe_read": 8}) for n in range(3)
    ]
    slow = process(23, parent=13, rank="3", waits={"folio_wait_bit": 8})
    ((kind, text),) = findings(find_ranks({"c1": node([*mains, *helpers, slow])}))
    assert kind == "loader"
    assert text == (
        "rank 3 on c1 (pid 13): its process 23 waits for a file system (folio_wait_bit), and the"
        " 3 others wait for it"
    )


def test_ranks_of_torchrun_are_its_workers_and_not_its_agent() -> None:
    agent = process(10, task="0", name="torchrun")
    workers = [process(11 + n, parent=10, task="0", rank=str(n)) for n in range(2)]
    ranks = find_ranks({"c1": node([agent, *workers])})
    assert [(rank.number, rank.main.pid) for rank in ranks] == [(0, 11), (1, 12)]


def test_tasks_of_srun_are_ranks_and_the_batch_script_is_none() -> None:
    script = process(10, task="0", step="", name="bash")
    shell = process(11, task="1", name="bash")
    work = process(12, parent=11, task="1")
    ranks = find_ranks({"c1": node([script, shell, work])})
    assert [(rank.number, rank.main.pid, len(rank.helpers)) for rank in ranks] == [(1, 12, 1)]


def test_without_ranks_the_top_processes_are_shown() -> None:
    script = process(10, step="", name="slurm_script")
    work = process(11, parent=10, step="")
    worker = process(12, parent=11, step="")
    ended = process(13, parent=11, step="", state="Z", name="worker")
    ranks = find_ranks({"c1": node([script, work, worker, ended])})
    assert [(rank.number, rank.main.pid) for rank in ranks] == [(None, 11)]
    assert ranks[0].title == "python3 train.py on c1 (pid 11)"
    ((kind, text),) = findings(ranks)
    assert kind == "zombie"
    assert text.startswith("process 13 (worker) of python3 train.py on c1 (pid 11) has ended")


def test_a_process_that_a_debugger_holds_is_not_called_stopped() -> None:
    held = ranks_of(["waits", "waits"], state="t", tracer=77)
    assert describe_state(held[0].main) == "is held by a debugger (pid 77)"


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("hrtimer_nanosleep", "timer"),
        ("do_nanosleep", "timer"),
        ("futex_wait_queue_me", "lock"),
        ("ep_poll", "poll"),
        ("poll_schedule_timeout.constprop.0", "poll"),
        ("sk_wait_data", "network"),
        ("wait_woken", "network"),
        ("anon_pipe_read", "pipe"),
        ("nfs4_wait_clnt_recover", "file"),
        ("rpc_wait_bit_killable", "file"),
        ("folio_wait_bit_common", "file"),
        ("do_wait", "child"),
        ("system call 202", "lock"),
        ("something_new", "other"),
        ("", ""),
    ],
)
def test_functions_of_the_kernel_are_told_apart(place: str, kind: str) -> None:
    assert wait_kind(place) == kind


def test_a_wait_counts_only_if_it_lasts() -> None:
    assert usual_wait(process(1, waits={"futex_wait": 4, "": 4})) == ("", "")
    assert usual_wait(process(1, waits={"futex_wait": 3, "futex_do_wait": 2, "": 3}))[0] == "lock"
    assert usual_wait(process(1, states={"D": 6, "S": 2}, waits={"x": 6}))[0] == "file"


def test_the_stacks_of_named_ranks_come_first() -> None:
    ranks = ranks_of(["waits"] * 5 + ["stopped"])
    chosen = suspects(ranks, rank_findings(ranks, 0), 3)
    assert [rank.number for rank in chosen] == [5, 0, 1]


@pytest.mark.parametrize(
    ("cpu", "ready", "is_found"),
    [(0.7, 6, True), (0.7, 3, False), (0.4, 8, False), (1.0, 0, True)],
)
def test_a_rank_that_gets_less_cpu_than_it_wants_is_busy(
    cpu: float, ready: int, *, is_found: bool
) -> None:
    """On an overloaded node the rank that computes got 35 to 48 % of a CPU."""
    busy = {"cpu": cpu, "states": {"R": ready, "S": 8 - ready}}
    family = [process(9, rank="3", **busy), *(process(n, rank=str(n), **LOCK) for n in range(3))]
    found = [kind for kind, _ in findings(find_ranks({"c1": node(family)}))]
    assert found == (["busy"] if is_found else [])
