"""Exporters on real sockets, round by round into the ledger, and from there to the runs."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_sacct import job, lately, step
from gpu_lab import JobsAndRuns, Nodes, exporter, gpu_page
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import GpuUseSection, ScheduleSection
from slurmkit_accounting.gpu_use.collect import GpuUseCollector
from slurmkit_accounting.gpu_use.exporters import (
    ExporterAddress,
    Exporters,
    exporter_address,
    read_exporters,
)
from slurmkit_accounting.gpu_use.recent import load_samples
from slurmkit_accounting.gpu_use.samples import GpuName, NodeAnswer, parse_page
from slurmkit_accounting.gpu_use.store import delete_old_curves, link_ended_runs, load_uses
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ingest.steps import update_measured_use
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.ledger.schema.gpu_use import gpu_curves, gpu_samples, gpu_use
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.ledger.schema.usage import usage_months
from slurmkit_accounting.service.schedule import Schedule
from slurmkit_accounting.service.tasks import ServiceTasks
from slurmkit_plugins.gpu_exporter.server import listen, serve_until
from sqlalchemy import func, select
from waiting import PATIENCE, wait_until

from slurmkit.errors import BadConfig, SlurmError
from slurmkit.state.gres import HoldingJob

RECORDED = Path(__file__).parents[3] / "recorded" / "gpu_exporter"
INTERVAL = 30
NOW = lately()
START = NOW - 700
END = START + 600


def address(port: int, **other: Any) -> ExporterAddress:
    facts = {"url": f"http://127.0.0.1:{port}/metrics?{{node}}", "token": "", "deadline": 5.0}
    return ExporterAddress(**(facts | other))


def ask(port: int, **other: Any) -> NodeAnswer:
    return read_exporters(address(port, **other), ["c1"])["c1"]


def test_a_node_is_read():
    with exporter(lambda _: gpu_page(7)) as port:
        answer = ask(port)
    assert answer.error == ""
    assert [(each.job, each.reading.utilization) for each in answer.readings] == [(7, 80)]
    assert abs(answer.readings[0].reading.at - time.time()) < 60


@contextmanager
def real_exporter(page: bytes, token: str) -> Iterator[int]:
    """The server of `slurmkit gpu-exporter`."""
    listening = listen("127.0.0.1:0")
    loop, stopped = asyncio.new_event_loop(), asyncio.Event()
    serving = serve_until(stopped, listening, lambda _: ("text/plain", page), token)
    thread = threading.Thread(target=loop.run_until_complete, args=(serving,), daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(PATIENCE)
        loop.close()


def test_our_own_exporter_is_read():
    page = (RECORDED / "node-c2.prom").read_bytes()
    with real_exporter(page, "secret") as port:
        where = ExporterAddress(f"http://{{node}}:{port}/metrics", "secret", 20.0)
        answer = read_exporters(where, ["127.0.0.1"])["127.0.0.1"]
        refused = read_exporters(where._replace(token="other"), ["127.0.0.1"])["127.0.0.1"]
    assert answer.error == ""
    assert {(each.job, each.gpu.index) for each in answer.readings} == {(41, 3), (41, 2), (42, 5)}
    assert "token" in refused.error


def test_the_token_is_sent_and_a_refused_one_is_named():
    def page(request: Any) -> str | None:
        if request.headers.get("Authorization") == "Bearer secret":
            return gpu_page(7)
        request.send_error(401)
        return None

    with exporter(page) as port:
        assert ask(port, token="secret").readings
        assert "token" in ask(port).error


def _endless(request: Any) -> None:
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(b"# x\n" * 10_000)
    except OSError:
        pass


def _failing(request: Any) -> None:
    request.send_error(503)


def _silent(request: Any) -> None:
    time.sleep(1)


def _cut(request: Any) -> None:
    request.wfile.write(b"HTTP/1.0 200")


def _no_http(request: Any) -> None:
    request.wfile.write(b"x" * 300_000)


def _strange_status(request: Any) -> None:
    request.wfile.write(b"HTTP/1.0 \x1b[2J" + b"9" * 50_000 + b" OK\r\n\r\n")


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (_strange_status, "HTTP status none"),
        (_endless, "larger than 4 MiB"),
        (_failing, "HTTP status 503"),
        (_silent, "no answer within 0.3 s"),
        (_cut, "without an answer"),
        (_no_http, "no HTTP header"),
        (lambda _: "<html>", "is this slurmkit gpu-exporter"),
        (lambda _: b"\xff\xfe", "is this slurmkit gpu-exporter"),
    ],
)
def test_a_bad_node_costs_only_its_own_samples(page, why):
    deadline = 0.3 if page is _silent else 20.0
    with exporter(page) as bad, exporter(lambda _: gpu_page(7)) as good:
        where = ExporterAddress("http://127.0.0.1:{node}/", "", deadline)
        answers = read_exporters(where, [str(bad), str(good)])
    assert why in answers[str(bad)].error
    assert answers[str(bad)].readings == ()
    assert len(answers[str(good)].readings) == 1


def test_a_name_that_cannot_be_a_host_s_costs_only_its_own_samples():
    odd = "x" * 70
    answers = read_exporters(ExporterAddress("http://{node}:1/", "", 5.0), [odd, "127.0.0.1"])
    assert all(answer.error for answer in answers.values())


def test_labels_that_no_driver_gives_name_nothing():
    (reading,) = parse_page(gpu_page(7).replace("GPU-1", "GPU\x00-1"), NOW).readings
    assert reading.gpu.uuid == ""


def test_a_node_that_is_away():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert ask(port).error
    assert read_exporters(ExporterAddress("http://{node}:1/", "", 5.0), ["nowhere.invalid"])[
        "nowhere.invalid"
    ].error


def test_a_round_ends_in_time_however_many_nodes_are_silent(monkeypatch):
    """With 1,200 of them a round took longer than its interval, and all lost samples."""
    monkeypatch.setattr("slurmkit_accounting.gpu_use.exporters._AT_ONCE", 2)
    nodes = [f"c{number}" for number in range(20)]
    with socket.create_server(("127.0.0.1", 0)) as listening:  # it never answers
        where = address(listening.getsockname()[1], deadline=0.2, asking=0.5)
        answers = read_exporters(where, nodes)
    assert list(answers) == nodes
    errors = [answer.error for answer in answers.values()]
    assert errors[0] == "no answer within 0.2 s"
    assert errors[-1] == "it was not asked: too many others did not answer"
    assert errors == sorted(errors, key=lambda error: "not asked" in error)  # the last ones


def test_nodes_that_did_not_answer_are_asked_last_and_in_turn():
    dead = [f"a{number}" for number in range(6)]
    nodes = (*dead, "b1", "b2")
    asked: list[list[str]] = []

    def read(_: ExporterAddress, wanted: Collection[str]) -> dict[str, NodeAnswer]:
        """Four nodes are asked in a round."""
        some = list(wanted)
        asked.append(some[:4])
        late = "it was not asked: too many others did not answer"
        answers = {node: "no answer" if node in dead else "" for node in some[:4]}
        answers |= dict.fromkeys(some[4:], late)
        return {node: NodeAnswer(error=error) for node, error in answers.items()}

    source = Exporters(address(1), read)
    job = HoldingJob("7", "7", "alice", "vision", "RUNNING", nodes, START, "gres/gpu=99")
    for _ in range(6):
        source.read([job])
    assert asked[0] == ["a0", "a1", "a2", "a3"]  # nobody knows yet
    assert asked[1] == ["a4", "a5", "b1", "b2"]  # the others go before those that were silent
    assert [some[:2] for some in asked[2:]] == [["b1", "b2"]] * 4
    assert [some[2:] for some in asked[2:]] == [
        ["a0", "a1"], ["a2", "a3"], ["a4", "a5"], ["a0", "a1"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "url", [
        "", "c1:9445", "ftp://{node}/", "http://c1:9445/metrics", "http://{node}:x/",
        "http://{node}:99999/",
    ],
)  # fmt: skip
def test_an_address_without_a_place_for_the_node(url):
    with pytest.raises(BadConfig, match="url"):
        exporter_address(GpuUseSection(url=url))


def test_a_token_that_everybody_can_read_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o644)
    with pytest.raises(BadConfig, match="everybody can read"):
        exporter_address(GpuUseSection(token_file=str(file)))
    file.chmod(0o600)
    section = GpuUseSection(url="http://{node}:332/metrics", token_file=str(file))
    assert exporter_address(section).token == "secret"


class Lab:
    """A cluster whose job 7 ran on c1 and c2 from START on."""

    def __init__(self, ledger: Any) -> None:
        self.ledger = ledger
        self.slurm = JobsAndRuns(job(7, START - 5, START, None, State="RUNNING", NodeList="c[1-2]"))
        self.slurm.run_job(7, "c[1-2]", START, "gres/gpu=2")
        ingest(ledger, self.slurm)
        self.nodes = Nodes()
        self.collector = self.service()

    def service(self) -> GpuUseCollector:
        """A service that has just begun."""
        source = Exporters(ExporterAddress("", "", 1), self.nodes)
        return GpuUseCollector(open_for_writing, self.slurm, source, interval=30, keep_days=400)

    def rounds(self, begin: int, end: int, *, busy: object = 0.8, nodes: str = "c1 c2") -> None:
        for at in range(begin, end, INTERVAL):
            self.nodes.at = float(at)
            page = gpu_page(7, busy=busy, joules=300.0 * (at - START))
            self.nodes.pages = dict.fromkeys(nodes.split(), page)
            self.collector.run("lab", at)

    def finish(self) -> None:
        """The job ends, and is ingested."""
        self.slurm.running.clear()
        self.slurm.jobs = [job(7, START - 5, START, END, NodeList="c[1-2]")]
        ingest(self.ledger, self.slurm)
        with self.ledger.transaction() as connection:
            update_measured_use(connection, link_ended_runs(connection))

    def uses(self) -> dict[str, Any]:
        with self.ledger.transaction() as connection:
            return {use.node: use for use in load_uses(connection)}

    def run(self) -> Any:
        with self.ledger.transaction() as connection:
            return connection.execute(select(runs)).one()


@pytest.fixture
def lab(ledger) -> Lab:
    return Lab(ledger)


@pytest.mark.sql
def test_a_job_is_measured_from_its_start_to_its_end(lab):
    lab.rounds(START + 30, END + 1)
    lab.finish()
    uses = lab.uses()
    assert set(uses) == {"c1", "c2"}
    for use in uses.values():
        assert (use.samples, use.percentile_95, use.source) == (20, 80, "exporter")
        assert use.covered_share(END) == 1
        assert use.joules == pytest.approx(300 * 600)
        assert sum(point.samples for point in use.curve.points()) == 20
    run = lab.run()
    assert run.gpu_used_permille == 800
    assert run.gpu_energy_joules == 2 * 300 * 600
    assert run.gpu_mem_peak_mib == 10240
    with lab.ledger.transaction() as connection:
        sums = [func.sum(usage_months.c[n]) for n in ("gpu_used_ms", "gpu_measured_ms")]
        used = connection.execute(select(*sums, func.sum(usage_months.c.gpu_joules))).one()
    assert tuple(map(int, used)) == (800 * 2 * 600, 1000 * 2 * 600, 2 * 300 * 600)


def test_a_service_that_is_restarted_goes_on(lab):
    lab.rounds(START + 30, START + 300)
    lab.collector = lab.service()
    lab.rounds(START + 300, END + 1)
    whole = lab.uses()["c1"]
    assert whole.samples == 20
    assert whole.covered_share(END) == 1
    assert whole.joules == pytest.approx(300 * 600)
    assert sum(point.samples for point in whole.curve.points()) == 20


@pytest.mark.sql
def test_curves_are_written_each_ten_minutes_and_no_sample_waits_for_it(lab):
    """Each round wrote every curve anew: 115 GB a day with 10,000 GPUs."""

    def stored() -> tuple[Any, ...]:
        with lab.ledger.transaction() as connection:
            rows = connection.execute(select(gpu_use.c.samples, gpu_curves.c.points).join(gpu_use))
            return tuple(map(tuple, rows))

    lab.rounds(START + 30, START + 31)
    first = stored()
    lab.rounds(START + 60, START + 600)
    assert stored() == first
    assert lab.uses()["c1"].samples == 19
    lab.rounds(START + 600, START + 660)
    assert {samples for samples, _ in stored()} == {20 + 1}
    assert sum(point.samples for point in lab.uses()["c1"].curve.points()) == 21


@pytest.mark.sql
def test_samples_are_kept_for_an_hour(lab):
    lab.rounds(START + 30, START + 31)
    lab.rounds(START + 4000, START + 4001)
    with lab.ledger.transaction() as connection:
        assert set(connection.scalars(select(gpu_samples.c.taken))) == {START + 4000}
    assert lab.uses()["c1"].samples == 2


def test_samples_of_a_service_that_was_away_for_hours_are_not_lost(lab):
    lab.rounds(START + 30, START + 301)
    lab.slurm.running.clear()
    lab.collector = lab.service()
    lab.rounds(START + 9000, START + 9001)
    lab.finish()
    assert lab.uses()["c1"].samples == 10


@pytest.mark.sql
def test_a_sample_that_is_stored_for_an_hour_is_as_it_was_taken(lab):
    lab.nodes.at = START + 30.25
    page = gpu_page(7, busy=0.123456789, watts=61.5, joules=2.0**52 + 1, memory="NaN")
    lab.nodes.pages = {"c1": page}
    lab.collector.run("lab", START + 30)
    (wanted,) = parse_page(page, START + 30.25).readings
    with lab.ledger.transaction() as connection:
        (sample,) = load_samples(connection, START)
        assert list(load_samples(connection, START, nodes=["c2"])) == []
        assert list(load_samples(connection, START + 31)) == []
    assert (sample.reading, sample.shared) == (wanted.reading, False)
    assert sample.reading.memory_mib is None


def test_a_service_that_was_away_has_a_gap(lab):
    lab.rounds(START + 30, START + 240)
    lab.collector = lab.service()
    lab.rounds(START + 360, END + 1)
    use = lab.uses()["c1"]
    assert use.samples == 16
    assert use.covered_share(END) == pytest.approx(16 / 20)
    assert use.mean == pytest.approx(80)


def test_a_node_that_is_lost_keeps_what_it_said(lab):
    lab.rounds(START + 30, START + 120)
    lab.rounds(START + 120, END + 1, nodes="c2")
    lab.finish()
    uses = lab.uses()
    assert (uses["c1"].samples, uses["c2"].samples) == (3, 20)
    # 23 of 40 samples are there: more than half of the run. They stand for all of it, both in its
    # use and in its energy.
    run = lab.run()
    assert run.gpu_used_permille == 800
    assert run.gpu_energy_joules == 2 * 300 * 600


@pytest.mark.sql
def test_idle_time_stands_for_the_whole_run_as_use_does(lab):
    lab.rounds(START + 30, START + 361, busy=0)
    lab.finish()
    run = lab.run()
    assert (run.gpu_used_permille, run.gpu_idle_seconds) == (0, 2 * 600)


def test_what_covers_less_than_half_of_a_run_is_not_its_use(lab):
    lab.rounds(START + 30, START + 240)
    lab.finish()
    run = lab.run()
    assert (run.gpu_used_permille, run.gpu_energy_joules) == (None, None)
    assert lab.uses()["c1"].samples == 7


@pytest.mark.sql
def test_samples_go_before_what_sacct_says(lab):
    lab.rounds(START + 30, END + 1)
    run = job(7, START - 5, START, END, NodeList="c[1-2]")
    lab.slurm.steps["1007"] = [step(run, "0", TRESUsageInTot="gres/gpuutil=150")]
    lab.finish()
    assert lab.run().gpu_used_permille == 800
    number = lab.run().id
    with lab.ledger.transaction() as connection:
        update_measured_use(connection, [number])
    assert lab.run().gpu_used_permille == 800


def test_a_failed_write_counts_nothing_twice(lab, monkeypatch):
    lab.rounds(START + 30, START + 120)

    def fail(*_: object) -> None:
        raise SlurmError("full")

    with monkeypatch.context() as broken:
        broken.setattr("slurmkit_accounting.gpu_use.collect.store_samples", fail)
        with pytest.raises(SlurmError):
            lab.rounds(START + 120, START + 121)
    lab.rounds(START + 150, START + 181)
    assert lab.uses()["c1"].samples == 5


@pytest.mark.sql
def test_a_job_that_nobody_runs_there_has_no_samples(lab):
    lab.nodes.at = START + 30.0
    lab.nodes.pages = {"c1": gpu_page(8), "c2": gpu_page(7, gpu=GpuName("GPU-nobody", "", 3))}
    assert lab.collector.run("lab", START + 30) == ""
    assert [(use.node, use.gpu.key) for use in lab.uses().values()] == [("c2", "GPU-nobody")]


def test_samples_of_more_gpus_than_a_run_held_are_not_believed(lab):
    for at in range(START + 30, END + 1, INTERVAL):
        lab.nodes.at = float(at)
        nobody = gpu_page(7, gpu=GpuName("GPU-nobody", "", 3))
        lab.nodes.pages = {"c1": gpu_page(7) + nobody, "c2": gpu_page(7)}
        lab.collector.run("lab", at)
    lab.finish()
    run = lab.run()
    assert run.gpus == 2
    assert (run.gpu_used_permille, run.gpu_energy_joules, run.gpu_mem_peak_mib) == (None,) * 3


def test_a_forged_page_tells_nothing_of_other_jobs_nor_of_more_gpus_than_a_job_holds(lab):
    """A job on c1 took the exporter's port: it may lie about the GPUs of c1's jobs, no more."""
    lab.slurm.run_job(8, "c1", START, "cpu=1,gres/gpu=1,gres/gpu:a100=1")
    lab.slurm.run_job(9, "c2", START)
    lab.slurm.run_job(10, "c1", START, "gres/shard=3")
    lab.nodes.at = START + 30.0
    names = [GpuName(f"GPU-{number}", "", number) for number in range(5)]
    forged = [*(gpu_page(7, 9, gpu=name) for name in names), gpu_page(8, 10, gpu=names[0])]
    lab.nodes.pages = {"c1": "".join(forged), "c2": gpu_page(7)}
    lab.collector.run("lab", START + 30)
    with lab.ledger.transaction() as connection:
        found = {(use.job, use.node, use.gpu.key) for use in load_uses(connection)}
    assert found == {(7, "c2", "GPU-1"), (8, "c1", "GPU-0"), (10, "c1", "GPU-0")}


def test_a_page_with_new_names_each_round_does_not_fill_the_ledger(lab):
    lab.rounds(START + 30, START + 61)
    for number in range(20):
        lab.nodes.at += INTERVAL
        forged = gpu_page(7, gpu=GpuName(f"GPU-{number}", "", 0))
        lab.nodes.pages = {"c1": forged, "c2": gpu_page(7)}
        lab.collector.run("lab", int(lab.nodes.at))
    with lab.ledger.transaction() as connection:
        uses = load_uses(connection)
    assert len(uses) == 4  # of two GPUs; so many that the run's use is in doubt
    assert {use.node: use.samples for use in uses if use.gpu.key == "GPU-1"} == {"c1": 3, "c2": 22}
    lab.finish()
    assert lab.run().gpu_used_permille is None


def test_a_token_goes_only_where_no_job_can_listen(tmp_path):
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o600)

    def address_of(url: str) -> str:
        return exporter_address(GpuUseSection(url=url, token_file=str(file))).url

    for url in ("http://{node}:6832/metrics", "http://{node}:1024/"):
        with pytest.raises(BadConfig, match=r"be sent the token; .* port below 1024"):
            address_of(url)
    for url in ("http://{node}:1023/metrics", "http://{node}/metrics", "https://{node}:6832/"):
        assert address_of(url) == url
    assert exporter_address(GpuUseSection()).token == ""


def test_a_requeued_job_is_another_run(lab):
    lab.rounds(START + 30, START + 90)
    again = START + 100
    lab.slurm.running = []
    lab.slurm.run_job(7, "c[1-2]", again)
    lab.rounds(START + 130, START + 190)
    with lab.ledger.transaction() as connection:
        found = [(use.start, use.samples) for use in load_uses(connection)]
    assert sorted(found) == [(START, 2)] * 2 + [(again, 2)] * 2


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_that_has_ended_takes_no_more_samples(lab, restarted):
    """squeue goes on showing it with the same start: the rest of a resized job, for example."""
    lab.rounds(START + 30, START + 90)
    shown = list(lab.slurm.running)
    lab.finish()
    lab.slurm.running = shown
    lab.slurm.run_job(8, "c1", START + 100)
    if restarted:
        lab.collector = lab.service()
    lab.rounds(START + 120, START + 150)
    lab.nodes.at = START + 180.0
    lab.nodes.pages = {"c1": gpu_page(7) + gpu_page(8, gpu=GpuName("GPU-2", "", 1))}
    lab.collector.run("lab", START + 180)
    with lab.ledger.transaction() as connection:
        found = {(use.job, use.node): use.samples for use in load_uses(connection)}
    assert found == {(7, "c1"): 2, (7, "c2"): 2, (8, "c1"): 1}


def test_a_job_that_squeue_misses_once_goes_on(lab):
    lab.rounds(START + 30, START + 90)
    shown, lab.slurm.running = lab.slurm.running, []
    lab.rounds(START + 90, START + 120)
    lab.slurm.running = shown
    lab.rounds(START + 120, START + 180)
    assert lab.uses()["c1"].samples == 4


def test_jobs_without_gpus_and_jobs_that_have_ended_are_not_read(lab):
    lab.slurm.running = []
    lab.slurm.run_job(7, "c1", START, "cpu=4,mem=8G,node=1")
    lab.slurm.run_job(8, "c2", START, "gres/gpu=1", "COMPLETING")
    lab.rounds(START + 30, START + 31)
    assert lab.uses() == {}


@pytest.mark.sql
def test_a_shared_gpu_that_is_not_measured_by_process_is_unknown(lab):
    lab.slurm.run_job(8, "c1", START)
    for at in range(START + 30, END + 1, INTERVAL):
        lab.nodes.at = float(at)
        lab.nodes.pages = {"c1": gpu_page(7, 8), "c2": gpu_page(7, busy="2.5")}
        lab.collector.run("lab", at)
    lab.finish()
    use = lab.uses()["c1"]
    assert (use.shared, use.samples, use.mean, use.idle_share, use.joules) == (
        True, 20, None, None, None,
    )  # fmt: skip
    assert lab.run().gpu_used_permille is None


def test_a_record_of_a_job_that_has_ended_does_not_make_a_gpu_shared(lab):
    """Where jobs may share GPUs, the record of a job whose epilog did not run stays."""
    lab.slurm.run_job(8, "c1", START)
    for at in range(START + 30, START + 301, INTERVAL):
        lab.nodes.at = float(at)
        if at == START + 150:
            lab.slurm.running.pop()  # job 8; job 9 is there from now on, after Slurm was asked
        others = (8,) if at < START + 150 else (8, 9) if at == START + 150 else (8,)
        lab.nodes.pages = {"c1": gpu_page(7, *others, joules=300.0 * (at - START))}
        lab.collector.run("lab", at)
    with lab.ledger.transaction() as connection:
        (use,) = [each for each in load_uses(connection) if each.job == 7]
    # Shared until the second round in which Slurm does not have the others.
    assert (use.samples, use.measured_samples) == (10, 5)
    assert (use.mean, use.counted_joules) == (pytest.approx(80), pytest.approx(300 * 120))


def test_curves_end_and_summaries_stay(lab):
    lab.rounds(START + 30, END + 1)
    lab.finish()
    with lab.ledger.transaction() as connection:
        assert delete_old_curves(connection, START) == 0
        assert delete_old_curves(connection, NOW) == 2
        assert connection.scalar(select(func.count()).select_from(gpu_curves)) == 0
        assert connection.scalar(select(func.count()).select_from(gpu_use)) == 2
    assert lab.uses()["c1"].curve is None


def test_silent_nodes_are_named(lab):
    lab.nodes.pages = {"c1": gpu_page(7)}
    lab.nodes.at = START + 30.0
    said = lab.collector.run("lab", START + 30)
    assert said == "1 of 2 nodes did not answer, e.g. c2: no route to host"


@contextmanager
def scheduled(tasks: ServiceTasks) -> Iterator[list[str]]:
    lines: list[str] = []
    schedule = Schedule(
        [each for each in tasks.tasks(ScheduleSection()) if each.name == "gpu_use"],
        open_for_writing,
        lambda what, **facts: lines.append(f"{what} {facts}"),
    )
    schedule.start()
    try:
        yield lines
    finally:
        schedule.stop()


def test_the_service_reads_exporters_on_its_own(configure, file_ledger):
    start = int(time.time()) - 5
    slurm = JobsAndRuns(job(7, start, start, None, State="RUNNING"))
    slurm.run_job(7, "c1", start)
    ingest(file_ledger, slurm)
    with exporter(lambda _: gpu_page(7)) as port:
        configure(
            f"[gpu_use]\nsource = 'exporters'\ninterval = 1\n"
            f"url = 'http://localhost:{port}/{{node}}'\n"
        )
        with pytest.raises(BadConfig, match="node"):
            ServiceTasks(open_for_writing, slurm, lambda: None, find_zone("UTC")).tasks(
                ScheduleSection()
            )
        slurm.running = []
        slurm.run_job(7, "localhost", start)
        configure(
            f"[gpu_use]\nsource = 'exporters'\ninterval = 1\nurl = 'http://{{node}}:{port}/'\n"
        )
        work = ServiceTasks(open_for_writing, slurm, lambda: None, find_zone("UTC"))

        def samples() -> int:
            with file_ledger.transaction() as connection:
                return sum(use.samples for use in load_uses(connection))

        with scheduled(work) as lines:
            wait_until(lambda: samples() >= 2, lambda: repr(lines))
    assert len(lines) == 1  # it says the same in each round
