"""The map of GPUs, on what each Slurm release printed and on what people forge."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from queue_lines import job_records

from slurmkit.cli.cluster_state import gpus_command
from slurmkit.errors import NoSuchJob, SlurmError
from slurmkit.state.gpumap import (
    JOBS_COMMAND,
    build_gpu_map,
    choose_letters,
    count_by_holder,
    gpu_mark,
    parse_claim_records,
    read_gpus,
)
from slurmkit.state.gpumap_model import FreeGpus, Gpu, GpuCounts, count_gpus, free_gpus
from slurmkit.state.gres import GresUse, parse_gres_uses, parse_holding_jobs, read_holding_jobs
from slurmkit.state.nodes import parse_nodes
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = ("22.05", "24.11", "26.05")
MARK = "\x1frecorded"


def recorded(release: str, name: str) -> str:
    return (RECORDED / release / f"gpus-{name}.txt").read_bytes().decode()


def fake(nodes: str, jobs: str, squeue: str) -> FakeSlurm:
    """Slurm that answers these, with the mark of the call in squeue's answer."""

    def scontrol(argv: Sequence[str], stdin: str | None) -> str:
        return nodes if argv[-1] == "node" else job_records(jobs, stdin)

    def answer(argv: Sequence[str], stdin: str | None) -> str:
        return squeue.replace(MARK, argv[-1].rpartition(":")[2])

    return FakeSlurm({"scontrol": scontrol, "squeue": answer})


@pytest.fixture(params=RELEASES)
def slurm(request: pytest.FixtureRequest) -> FakeSlurm:
    return fake(*(recorded(request.param, name) for name in ("nodes", "jobs", "squeue")))


def drawn(gpus: Sequence[Gpu]) -> dict[str, str]:
    letter = choose_letters(tuple(count_by_holder(gpus, "user")))
    lines: dict[str, str] = {}
    for gpu in gpus:
        lines[gpu.node] = lines.get(gpu.node, "") + gpu_mark(gpu, "user", letter)
    return lines


def test_each_release_gives_the_same_map(slurm: FakeSlurm) -> None:
    """Multi-node, suspended, untyped array, MIG, MPS, shards, a drained node, forged lines."""
    made = read_gpus(slurm)
    assert drawn(made.gpus) == {
        "c1": "aabbb...",
        "c2": "aaxxxxxx",
        "c3": "a+b.",
        "c4": "aa..",
        "c5": "a.bbb.",
        "c6": "+.",
    }
    assert slurm.calls == 3
    assert made.warnings == ()  # the name of job 13 is not believed


def test_only_jobs_that_hold_gpus_are_asked_about(slurm: FakeSlurm) -> None:
    """Of 20,000 waiting jobs, scontrol alone takes half a minute."""
    answer, said = slurm._answers["scontrol"], []

    def scontrol(argv: Sequence[str], stdin: str | None) -> str:
        said.append(stdin)
        return answer(argv, stdin)

    slurm._answers["scontrol"] = scontrol
    read_gpus(slurm)
    (commands,) = filter(None, said)
    shown = [line for line in commands.splitlines() if line.startswith("show job ")]
    asked = {line.removeprefix("show job ") for line in shown}
    holding = {raw_id for raw_id, _ in _gpu_holders(slurm)}
    assert asked == holding
    assert len(asked) > 3


def _gpu_holders(slurm: FakeSlurm) -> list[tuple[str, str]]:
    return [(one.raw_id, one.tres) for one in read_holding_jobs(slurm) if "gres/" in one.tres]


def test_without_readline_the_prompt_stands_before_each_record(slurm: FakeSlurm) -> None:
    answer, plain = slurm._answers["scontrol"], read_gpus(slurm)

    def prompting(argv: Sequence[str], stdin: str | None) -> str:
        text = answer(argv, stdin)
        return text if stdin is None else text.replace("JobId=", "scontrol: JobId=")

    slurm._answers["scontrol"] = prompting
    assert read_gpus(slurm).gpus == plain.gpus


def test_many_jobs_are_one_question_where_slurmctld_limits_them(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = slurm._answers["scontrol"]

    def scontrol(argv: Sequence[str], stdin: str | None) -> str:
        if argv[-1] == "config":
            return "SlurmctldParameters     = rl_enable,rl_bucket_size=10\n"
        return answer(argv, stdin)

    slurm._answers["scontrol"] = scontrol
    monkeypatch.setattr("slurmkit.state.gpumap._UNLIMITED", 3)
    before = read_gpus(slurm).gpus
    assert list(JOBS_COMMAND) in slurm.asked
    slurm._answers["scontrol"] = answer
    monkeypatch.undo()
    assert read_gpus(slurm).gpus == before


def test_a_job_that_has_just_gone_does_not_end_the_map(slurm: FakeSlurm) -> None:
    answer, plain = slurm._answers["scontrol"], read_gpus(slurm)

    def gone(argv: Sequence[str], stdin: str | None) -> str:
        if stdin is not None:
            raise NoSuchJob("slurm_load_jobs error: Invalid job id specified")
        return answer(argv, stdin)

    slurm._answers["scontrol"] = gone
    assert read_gpus(slurm).gpus == plain.gpus


def test_one_gpu_in_full(slurm: FakeSlurm) -> None:
    gpus = {(gpu.node, gpu.index): gpu for gpu in read_gpus(slurm).gpus}
    whole = gpus["c1", 2]
    assert (whole.state, whole.job_id, whole.user, whole.account) == ("held", "3", "bob", "vision")
    assert whole.type == "a100"
    assert whole.since is not None
    assert whole.since > 1_700_000_000
    assert (gpus["c4", 1].job_id, gpus["c4", 1].type) == ("7_2", None)
    assert (gpus["c5", 0].type, gpus["c5", 0].mig) == ("a100_3g.20gb", "3g.20gb")
    assert (gpus["c5", 3].type, gpus["c5", 3].mig) == ("a100_1g.5gb", "1g.5gb")
    assert (gpus["c5", 1].type, gpus["c5", 1].mig) == (None, None)  # Slurm does not say
    assert gpus["c2", 5].state == "drained"


def test_shares(slurm: FakeSlurm, request: pytest.FixtureRequest) -> None:
    """Slurm 22.05 does not tell how many parts a GPU has."""
    totals = (None, None) if "22.05" in request.node.name else (4, 100)
    gpus = {(gpu.node, gpu.index): gpu for gpu in read_gpus(slurm).gpus}
    both, one, free, mps = (gpus[at] for at in (("c3", 1), ("c3", 0), ("c3", 3), ("c6", 0)))
    assert both.shard
    assert one.shard
    assert free.shard
    assert mps.mps
    assert (both.state, both.user, both.shard.used, both.shard.total) == (
        "shared", None, 4, totals[0],
    )  # fmt: skip
    assert {(s.user, s.job_id, s.amount) for s in both.shard.by} == {
        ("bob", "4", 2),
        ("alice", "5", 2),
    }
    assert (one.state, one.user, one.job_id, one.shard.used) == ("shared", "alice", "2", 3)
    assert (free.state, free.shard.used, free.shard.by) == ("free", 0, ())
    assert (mps.state, mps.mps.used, mps.mps.total) == ("shared", 80, totals[1])
    assert {(s.user, s.amount) for s in mps.mps.by} == {("alice", 50), ("bob", 30)}


def test_what_is_free_is_counted_where_it_can_be_used(slurm: FakeSlurm) -> None:
    free = {of.type: of for of in free_gpus(read_gpus(slurm).nodes)}
    assert free["a100"] == FreeGpus("a100", 18, 4, 3, "c1", 0)  # not the drained c2
    assert free["h100"] == FreeGpus("h100", 4, 1, 1, "c3", 0)
    assert free[None] == FreeGpus(None, 4, 2, 2, "c4", 0)
    assert free["a100_1g.5gb"] == FreeGpus("a100_1g.5gb", 4, 1, 1, "c5", 0)


def test_every_gpu_is_counted_once(slurm: FakeSlurm) -> None:
    nodes = read_gpus(slurm).nodes
    counts = {of.type: of for of in count_gpus(nodes)}
    assert counts["a100"] == GpuCounts("a100", 8, 4, 0, 6, 3, "c1")
    assert sum(of.total for of in counts.values()) == 32
    reserved = [
        msgspec.structs.replace(node, states=(*node.states, "MAINTENANCE")) for node in nodes
    ]
    of = next(of for of in count_gpus(reserved) if of.type == "a100")
    assert of == GpuCounts("a100", 8, 0, 4, 6, 0, None)


def run(monkeypatch: pytest.MonkeyPatch, slurm: FakeSlurm, *args: str) -> tuple[str, str]:
    monkeypatch.setattr("slurmkit.cluster.cluster._LOCAL", slurm)
    done = CliRunner().invoke(gpus_command, args, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_json_is_one_entry_per_gpu(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = json.loads(run(monkeypatch, slurm, "--json")[0])["rows"]
    assert len(entries) == 32
    keys = "node index type state job_id user account shard mps mig since"
    assert {tuple(entry) for entry in entries} == {tuple(keys.split())}


def test_the_picture(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, said = run(monkeypatch, slurm, "--partition", "gpu")
    assert shown.splitlines() == [
        "NODE  TYPE  0 1 2 3 4 5 6 7",
        "c1    a100  a a b b b . . .",
        "c2    a100  a a x x x x x x  drained: bad DIMM A=3",
        "c3    h100  a + b .",
        "",
        "a alice: 6   b bob: 5",
        ". free   + shared by several   x held by nobody, node drained or down",
    ]
    assert "20 GPUs: 4 free, largest block on one node: 3 (a100 on c1)" in said


def test_the_list_answers_who_is_on_a_gpu(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, _ = run(monkeypatch, slurm, "--list", "--node", "c3")
    line = shown.splitlines()[3].split()
    assert line[:7] == ["c3", "2", "h100", "held", "bob", "vision", "6"]
    assert "several" in shown.splitlines()[2]


# --- What people forge ----------------------------------------------------------------------------

NODE = (
    "NodeName={name} CoresPerSocket=8 CPUAlloc=4 CPUEfctv=16 CPUTot=16 CPULoad=0.5 Gres={gres}"
    " GresUsed={used} RealMemory=1000 AllocMem=10 Sockets=2 State={state} ThreadsPerCore=1"
    " TmpDisk=0 Partitions=gpu CfgTRES=cpu=16,mem=1000M,gres/gpu=4 AllocTRES=cpu=4\n"
)


def node(name: str, gres: str, used: str, state: str = "MIXED") -> str:
    return NODE.format(name=name, gres=gres, used=used, state=state)


def row(job: int, user: str, nodes: str, tres: str = "", state: str = "RUNNING") -> str:
    fields = (
        str(job),
        str(job),
        user,
        "acc",
        state,
        nodes,
        "1000",
        ",".join(filter(None, ["cpu=1", tres])),
    )
    return "".join(f"{field}{MARK}" for field in fields) + "\n"


def record(job: int, *lines: str, name: str = "x") -> str:
    held = "".join(f"     {line}\n" for line in lines)
    return f"JobId={job} JobName={name}\n   UserId=u(1)\n{held}   Command=(null)\n\n"


def holds(nodes: str, gres: str) -> str:
    return f"Nodes={nodes} CPU_IDs=0 Mem=1 GRES={gres}"


def mapped(nodes: str, squeue: str, jobs: str) -> tuple[str, tuple[str, ...]]:
    """The owners of the GPUs, in one line, and the warnings."""
    records = parse_claim_records(jobs.splitlines(keepends=True))
    gpus, _, warnings = build_gpu_map(parse_nodes(nodes), parse_holding_jobs(squeue, MARK), records)
    return " ".join(gpu.user or gpu.state for gpu in gpus), warnings


BOB = row(1, "bob", "n1", "gres/gpu=2")
BOBS = record(1, holds("n1", "gpu:a100:2(IDX:0-1)"))
EVE = row(2, "eve", "n1", "gres/gpu=1")


TRUE_EVE = holds("n1", "gpu:a100:1(IDX:2)")


def forging(*lines: str, then: str = TRUE_EVE) -> str:
    """Eve's record, its name followed by lines of her own; then the true line."""
    return record(2, *([then] if then else []), name="\n     ".join(["x", *lines]))


@pytest.mark.parametrize("true_first", [True, False])
@pytest.mark.parametrize(
    ("jobs", "owners"),
    [
        (forging(), "bob bob eve free"),
        (forging(TRUE_EVE), "bob bob held free"),  # the true line twice
        (forging(holds("n1", "gpu:1(IDX:0)")), "bob bob held free"),
        (forging(holds("n1", "gpu:1(IDX:0)"), then=""), "unknown bob held free"),
        (forging(holds("n1", "gpu:1(IDX:3)"), then=""), "bob bob held free"),
        (forging(holds("n2", "gpu:1(IDX:0)"), then=""), "bob bob held free"),
        (forging(holds("n1", "gpu:1(IDX:4)"), then=""), "bob bob held free"),
        (forging(holds("n[1-99999999999]", "gpu:1(IDX:2)"), then=""), "bob bob held free"),
        (forging(holds("n[1-60000]x[1-60000]", "gpu:1(IDX:2)"), then=""), "bob bob held free"),
        (forging(holds("n1", "gpu:1(IDX:0-9999999999)"), then=""), "bob bob held free"),
        (forging(holds("@x`id`", "gpu:1(IDX:2)"), then=""), "bob bob held free"),
        (forging(holds("n[1", "gpu:x(IDX:a-b)"), then=""), "bob bob held free"),
        # Bob's job once more, as good as the true one: GPU 2 may be bob's; then worse.
        (record(1, holds("n1", "gpu:2(IDX:1-2)")) + forging(), "held held held free"),
        (record(1, holds("n1", "gpu:1(IDX:2)")) + forging(), "bob bob eve free"),
        (record(1, holds("n1", "gpu:2(IDX:2-3)")) + forging(), "bob bob eve free"),
        (BOBS + forging(), "bob bob eve free"),  # word for word
    ],
)
def test_forged_lines_give_nobody_a_gpu(jobs: str, owners: str, *, true_first: bool) -> None:
    nodes = node("n1", "gpu:a100:4", "gpu:a100:3(IDX:0-2)") + node("n2", "(null)", "")
    text = BOBS + jobs if true_first else jobs + BOBS
    assert mapped(nodes, BOB + EVE, text)[0] == owners


@pytest.mark.parametrize(
    ("line", "owner"),
    [
        # What Slurm cannot print is left out; the true line counts.
        ("Nodes=n[1-2]d[3-4]1000000000000 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)", "eve"),
        ("Nodes=19[1-65535]- CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)", "eve"),
        (f"Nodes=n1 CPU_IDs=0 Mem=1 GRES={'gpu:1,' * 100}gpu:1", "eve"),
        (f"Nodes=n1 CPU_IDs=0 Mem=1 GRES={'x' * 4000}(", "eve"),
        (f"Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:{'0-3,' * 99}0)", "eve"),
        (f"Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0-{'9' * 30})", "eve"),
        (f"Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:{'9' * 900}", "held"),
        # What names other nodes makes the record useless.
        ("Nodes=19[1-65535] CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)", "held"),
        (f"Nodes=n[1-999999999] CPU_IDs=0 Mem=1 GRES={'gpu:1(IDX:0),' * 60}gpu:1", "held"),
    ],
)
def test_a_forged_line_costs_no_time_or_memory(line: str, owner: str) -> None:
    nodes = node("n1", "gpu:a100:4", "gpu:a100:3(IDX:0-2)") + node("n2", "(null)", "")
    tracemalloc.start()
    try:
        found, _ = mapped(nodes, BOB + EVE, BOBS + forging(*[line] * 50))
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()
    assert found == f"bob bob {owner} free"


def live(*jobs: tuple[str, str]) -> FakeSlurm:
    """Slurm with the jobs of bob and eve on n1: raw id, and what scontrol prints of the job."""
    nodes = node("n1", "gpu:a100:4", "gpu:a100:3(IDX:0-2)")

    def scontrol(argv: Sequence[str], stdin: str | None) -> str:
        if stdin is None:
            return nodes if argv[-1] == "node" else "".join(text for _, text in jobs)
        known, said = dict(jobs), ""
        for command in stdin.splitlines():
            name = command.split()[-1]
            said += known[name] if command.startswith("show job") else f"{name}\n"
        return said

    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        return (BOB + EVE).replace(MARK, argv[-1].rpartition(":")[2])

    return FakeSlurm({"scontrol": scontrol, "squeue": squeue})


@pytest.mark.parametrize("at_once", [False, True])
def test_a_name_takes_no_gpus_of_others_off_the_map(
    monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    """A record in the answer about eve's job is none of bob's, however good it looks."""
    monkeypatch.setattr("slurmkit.state.gpumap._ONE_BY_ONE", 1 if at_once else 100)
    eves = record(2, TRUE_EVE, name="".join(["x", *forged(1, "gpu:2(IDX:1-2)"), SWALLOWED]))
    made = read_gpus(live(("1", BOBS), ("2", eves)))
    assert [gpu.user or gpu.state for gpu in made.gpus] == ["bob", "bob", "held", "free"]


def test_an_answer_that_breaks_off_is_an_error() -> None:
    slurm = live(("1", BOBS), ("2", record(2, TRUE_EVE)))
    answer = slurm._answers["scontrol"]
    slurm._answers["scontrol"] = lambda argv, stdin: answer(argv, stdin)[: -9 if stdin else None]
    with pytest.raises(SlurmError, match="broke off; try again"):
        read_gpus(slurm)


def test_very_many_records_of_one_job_are_not_compared() -> None:
    """Each could name all nodes of the job."""
    nodes = node("n1", "gpu:a100:4", "gpu:a100:3(IDX:0-2)")
    pieces = [text for at in range(20) for text in forged(1, f"gpu:{at + 1}(IDX:1-2)")]
    jobs = BOBS + record(2, name="".join([*pieces, *forged(2, "gpu:1(IDX:0)"), SWALLOWED]))
    found, warnings = mapped(nodes, BOB + EVE, jobs)
    assert found == "held held held free"
    assert "job 1 (bob)" in warnings[0]


def test_who_forges_is_named() -> None:
    nodes = node("n1", "gpu:a100:4", "gpu:a100:3(IDX:0-2)")
    _, warnings = mapped(nodes, BOB + EVE, BOBS + forging(holds("n1", "gpu:1(IDX:0)")))
    (warning,) = warnings
    assert "job 2 (eve)" in warning
    _, clash = mapped(nodes, BOB + EVE, BOBS + forging(holds("n1", "gpu:1(IDX:0)"), then=""))
    assert clash == ("several jobs claim GPU 0 of n1; shown as unknown",)


def test_who_casts_doubt_on_another_is_named() -> None:
    pieces = [*forged(2, "gpu:1(IDX:0)"), *forged(1, "gpu:2(IDX:1-2)"), SWALLOWED]
    nodes = node("n1", "gpu:a100:4", "gpu:a100:3(IDX:0-2)")
    found, warnings = mapped(nodes, BOB + EVE, BOBS + record(2, TRUE_EVE, name="".join(pieces)))
    assert found == "held held held free"
    assert "scontrol lists GPUs of job 1 (bob) twice, or not as squeue" in warnings[0]
    assert (
        warnings[1] == "job 2 (eve) claims GPUs that may belong to another job; they are left out"
    )


def test_a_job_without_gpus_gets_none() -> None:
    """Also where the node only counts."""
    jobs = BOBS + record(2, name="x\n     " + holds("n1", "gpu:1(IDX:3)"))
    nodes = node("n1", "gpu:4", "gpu:3")
    found, _ = mapped(nodes, BOB + row(2, "eve", "n1"), jobs)
    assert found == "bob bob unknown unknown"


PIECES = st.sampled_from(
    [
        "\n", "\n\n", "x", *(f"\nJobId={job} JobName=y\n" for job in (1, 2, 3)),
        *(f"\n     {holds(n, f'gpu:{c}(IDX:{i})')}\n" for n in ("n1", "n2")
          for c, i in ((1, "2"), (1, "0"), (2, "0-1"), (2, "1-2"), (1, "3"))),
        *(f"\n     {holds('n1', gres)}\n" for gres in ("gpu:1", "gpu(CNT:1)", "gpu:2")),
    ]
)  # fmt: skip
SWALLOWED = "\nJobId=3 JobName=y\n"  # whose record gets eve's true line


def forged(job: int, gres: str) -> list[str]:
    return [f"\nJobId={job} JobName=y\n", f"\n     {holds('n1', gres)}\n"]


@example(
    pieces=[*forged(2, "gpu:1(IDX:0)"), *forged(1, "gpu:2(IDX:1-2)"), SWALLOWED], bob_first=False
)
@example(pieces=[*forged(2, "gpu:1(IDX:0)"), *forged(1, "gpu:1(IDX:2)")], bob_first=False)
@example(pieces=[*forged(2, "gpu:1"), *forged(1, "gpu:2(IDX:1-2)"), SWALLOWED], bob_first=True)
@given(pieces=st.lists(PIECES, max_size=8), bob_first=st.booleans())
def test_no_name_makes_a_gpu_somebody_elses(pieces: list[str], *, bob_first: bool) -> None:
    """Whatever eve calls her job, each GPU has its true holder or nobody that is known."""
    eves = record(2, TRUE_EVE, name="".join(pieces))
    nodes = node("n1", "gpu:a100:4", "gpu:a100:3(IDX:0-2)")
    found, _ = mapped(nodes, BOB + EVE, BOBS + eves if bob_first else eves + BOBS)
    truth = ("bob", "bob", "eve", "free")
    for told, true in zip(found.split(), truth, strict=True):
        assert told in (true, "held", "unknown")
    assert found.split()[3] == "free"


# --- What Slurm does not say ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gres", "used", "owners"),
    [
        ("gpu:a100:4", "gpu:a100:3(IDX:0-2)", "bob bob held free"),  # a hidden job, or a new one
        ("gpu:a100:4", "gpu:a100:0(IDX:N/A)", "free free free free"),  # bob's has just ended
        ("gpu:mi300x:4", "gpu:mi300x:2(IDX:0-1)", "bob bob free free"),
        ("gpu:4", "gpu:2", "bob bob free free"),
        ("gpu:4", "gpu:3", "bob bob unknown unknown"),
        ("gpu:4", "gpu:4", "bob bob held held"),
        ("gpu:4", "gpu:(null):2(IDX:0-1)", "bob bob free free"),
        ("gpu:4", "gpu:(null):2(IDX:N/A)", "bob bob free free"),  # only how many
        ("gpu:4", "gpu:(null):3(IDX:N/A)", "bob bob unknown unknown"),
    ],
)
def test_as_far_as_the_node_says(gres: str, used: str, owners: str) -> None:
    assert mapped(node("n1", gres, used), BOB, BOBS)[0] == owners


def test_gpus_without_device_files_are_counted() -> None:
    jobs = record(1, holds("n1", "gpu(CNT:2)")) + record(2, holds("n1", "gpu(CNT:1)"))
    records = parse_claim_records(jobs.splitlines(keepends=True))
    text = node("n1", "gpu:4", "gpu:3")
    gpus, _, _ = build_gpu_map(parse_nodes(text), parse_holding_jobs(BOB + EVE, MARK), records)
    assert [gpu.user for gpu in gpus] == ["bob", "bob", "eve", None]
    assert {gpu.index for gpu in gpus} == {None}


def test_more_in_use_than_there_are() -> None:
    """Gres was made less while jobs had more; and jobs that came and went between two answers."""
    used = node("n1", "gpu:a100:1", "gpu:a100:2(IDX:0-1)")
    assert mapped(used, BOB, BOBS)[0] == "held"
    assert "GPU 1 of n1 is in use, but the node has 1 GPUs" in mapped(used, BOB, BOBS)[1]
    counted = node("n1", "gpu:2", "gpu:2")
    jobs = record(1, holds("n1", "gpu(CNT:2)")) + record(2, holds("n1", "gpu(CNT:1)"))
    assert mapped(counted, BOB + EVE, jobs)[0] == "unknown unknown"


@pytest.mark.parametrize(
    ("state", "shown"),
    [("DOWN", "down"), ("IDLE+DRAIN", "drained"), ("DOWN+DRAIN", "down"), ("IDLE*", "down"),
     ("IDLE+PLANNED", "free"), ("MIXED+RESERVED", "free")],
)  # fmt: skip
def test_gpus_of_nodes_that_take_no_jobs(state: str, shown: str) -> None:
    """What is held there stays held."""
    text = node("n1", "gpu:a100:4", "gpu:a100:2(IDX:0-1)", state)
    assert mapped(text, BOB, BOBS)[0] == f"bob bob {shown} {shown}"


def test_parts_of_gpus_of_several_types() -> None:
    """The node lists parts by type, so that only the jobs say on which index they are."""
    text = node("n1", "gpu:a:1,gpu:b:1,shard:a:4,shard:b:4", "gpu:a:0(IDX:N/A),gpu:b:0(IDX:N/A),"
                "shard:a:0(0/4),shard:b:3(3/4)")  # fmt: skip
    jobs = record(1, holds("n1", "shard:3(0/4,3/4)"))
    assert mapped(text, row(1, "bob", "n1", "gres/shard=3"), jobs)[0] == "free bob"
    assert mapped(text, "", "")[0] == "unknown unknown"


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("", ()),
        ("gpu:2", (GresUse("gpu", None, 2),)),
        ("gpu:a100:0(IDX:N/A)", (GresUse("gpu", "a100", 0, ()),)),
        ("gpu:a100:3(IDX:0,2-3)", (GresUse("gpu", "a100", 3, (0, 2, 3)),)),
        ("gpu:1g.5gb:1(IDX:0)", (GresUse("gpu", "1g.5gb", 1, (0,)),)),
        ("gpu:(null):1(IDX:3)", (GresUse("gpu", None, 1, (3,)),)),
        ("gpu(CNT:2)", (GresUse("gpu", None, 2),)),
        (
            "gpu:h100:1(IDX:1),shard:h100:3(3/4,-/4)",
            (
                GresUse("gpu", "h100", 1, (1,)),
                GresUse("shard", "h100", 3, (0,), ((3, 4), (0, 4))),
            ),
        ),
    ],
)
def test_uses(text: str, uses: tuple[GresUse, ...]) -> None:
    assert parse_gres_uses(text) == uses


def test_letters_are_ones_own_where_they_can_be() -> None:
    assert choose_letters(("alice", "bob", "anna", "ann", "xx")) == {
        "alice": "a", "bob": "b", "anna": "n", "ann": "A", "xx": "X",
    }  # fmt: skip
    many = choose_letters([f"user{number}" for number in range(60)])
    assert len(set(many.values())) == 60
    assert {len(label) for label in many.values()} == {2}


def test_a_foreign_name_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = node("n1", "gpu:a100:4", "gpu:a100:2(IDX:0-1)", "IDLE+DRAIN").replace(
        " CfgTRES", " Reason=\x1b[2Jx [root@1795214412] CfgTRES"
    )
    slurm = fake(nodes, BOBS, row(1, "b\x1b[2J", "n1", "gres/gpu=2"))
    shown, said = run(monkeypatch, slurm)
    assert "\x1b" not in shown + said
    assert "\\x1b[2Jx" in shown
