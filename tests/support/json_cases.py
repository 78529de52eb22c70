"""A scene for each command that takes `--json`, with data that never changes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import allocation_scenes
import benchmark_scenes
import pytest
import site_scenes
import ssh_scenes
from flow_lab import FlowLab
from gpu_lab import steady, use_of
from jobs_lab import QUICK, FakeJobs
from planner_lab import Lab
from queue_lines import job_records
from recorded_lab import slurm
from slurmkit_accounting import read
from slurmkit_accounting.audit.status import ClusterStatus, LastIngest, LedgerStatus
from slurmkit_accounting.audit.verify import VerifyResult
from slurmkit_accounting.cli import ledger_reports
from slurmkit_accounting.gpu_use.samples import GpuName
from slurmkit_accounting.gpu_use.store import store_uses
from slurmkit_accounting.ingest.enter import IngestCounts
from slurmkit_accounting.ingest.ingest import Ingested
from slurmkit_accounting.ingest.rejects import StoredReject
from slurmkit_accounting.ingest.retract import RetractedRun
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.notify.mail_settings import MailSettings
from slurmkit_accounting.people import sync
from slurmkit_accounting.people.dated import PeopleChange
from slurmkit_accounting.people.history import History, HistoryLine
from slurmkit_accounting.people.sync import PiOverride
from slurmkit_accounting.people.unmapped import UnmappedUsage
from slurmkit_accounting.people.xdmod import XdmodFiles
from slurmkit_accounting.reclaim.keep import LeftAloneJob
from slurmkit_accounting.reclaim.policy import ReclaimPolicy
from slurmkit_accounting.reports.explain import Evidence
from slurmkit_accounting.reports.model import Column, Meta, Report
from slurmkit_accounting.usage.closed_months import ClosedMonth
from slurmkit_containers.cache import CachedImage, ImageOrigin, ImageRecord
from slurmkit_containers.images import CatalogueSection
from stored_runs import ran, store_runs

from slurmkit.cli.remote import RemoteClusterStatus, SshSlurmCommands
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.sweep_results import SweepPoint, SweepResults
from slurmkit.cluster.sweeps import ArrayRecord, SentArray
from slurmkit.cluster.workflow_plan import WorkflowPlan, plan_workflow
from slurmkit.config.check import ConfigReport, ConfigSetting
from slurmkit.config.plugins import Plugin
from slurmkit.diagnose.model import Explanation
from slurmkit.doctor.case import Diagnosis
from slurmkit.interactive.web_servers import ServerJob, WebServer
from slurmkit.jobs.backends.ssh import PendingSubmit
from slurmkit.planning.planner import Plan
from slurmkit.slurm.ssh.transfer import SendResult
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.submission import Submission
from slurmkit.spec.sweep import Sweep
from slurmkit.spec.workflow import load_workflow
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[1] / "recorded"
NOW = 1_800_000_000.0
Scene = Callable[[pytest.MonkeyPatch, Path], Sequence[str]]
"""Sets a scene, and returns the words after the command's name."""
SCENES: dict[str, Scene] = {}
"""Name of a scene: the command, and what else is asked for -> the scene."""
_LIMITS = {
    "config": "scontrol-config", "node": "scontrol-nodes", "partition": "scontrol-partitions",
    "license": "scontrol-licenses", "reservation": "scontrol-reservations",
    "assoc_mgr": "assoc_mgr", "qos": "sacctmgr-qos", "account=root": "sacctmgr-root",
    "assoc": "sacctmgr-assoc", "--mpi=list": "../srun-mpi", "--help": "../srun-help",
    "sshare": "sshare", "sprio": "sprio",
}  # fmt: skip


def scene(*names: str) -> Callable[[Scene], Scene]:
    def add(made: Scene) -> Scene:
        SCENES.update(dict.fromkeys(names, made))
        return made

    return add


def fixed_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(time, "time", lambda: NOW)
    patch.setattr(time, "perf_counter", lambda: 5.0)


def _local(patch: pytest.MonkeyPatch, fake: FakeSlurm) -> None:
    patch.setattr("slurmkit.cluster.cluster._LOCAL", fake)


def _limits(patch: pytest.MonkeyPatch) -> None:
    def answer(argv: Sequence[str], _: str | None) -> str:
        word = next(word for word in _LIMITS if word in argv)
        text = Path(RECORDED, "24.11", "limits", f"{_LIMITS[word]}.txt").read_text("utf-8")
        mark = argv[-1].removeprefix("--format=%i").partition("%")[0]
        return text.replace("\x1frecorded", mark) if word == "sprio" else text

    commands = ("scontrol", "sacctmgr", "srun", "sshare", "sprio")
    _local(patch, FakeSlurm(dict.fromkeys(commands, answer)))
    for module in ("state.associations", "cli.capabilities", "cli.fairshare"):
        patch.setattr(f"slurmkit.{module}.current_user", lambda *_: "alice")
    patch.setattr("slurmkit.slurm.machine.LocalMachine.groups", lambda *_: ("people", "vision"))


def _gpus(patch: pytest.MonkeyPatch, **more: Any) -> None:
    nodes, jobs, squeue = (
        Path(RECORDED, "24.11", f"gpus-{name}.txt").read_bytes().decode()
        for name in ("nodes", "jobs", "squeue")
    )

    def answer(argv: Sequence[str], _: str | None) -> str:
        return squeue.replace("\x1frecorded", argv[-1].rpartition(":")[2])

    def scontrol(argv: Sequence[str], stdin: str | None) -> str:
        return nodes if argv[-1] == "node" else job_records(jobs, stdin)

    known = {"scontrol": scontrol, "squeue": answer}
    _local(patch, FakeSlurm(known | more))


def _jobs(patch: pytest.MonkeyPatch) -> FakeJobs:
    made = FakeJobs()
    quiet = dict.fromkeys(("scancel", "scontrol"), lambda argv, stdin: "")
    made.slurm._answers |= quiet
    _local(patch, made.slurm)
    patch.setattr("slurmkit.jobs.poller.PollPace", lambda **given: QUICK)
    return made


# --- the queue and jobs ---------------------------------------------------------------------------


@scene("queue")
def _queue(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    made = _jobs(patch)
    made.runs_now("7", Name="日本", **{"tres-alloc": "cpu=1,gres/gpu=2"})
    made.waits("8", Reason="Resources")
    return ()


@scene("job")
def _job(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    made = _jobs(patch)
    made.ends("7", "FAILED", ExitCode="3:0")
    made.steps.append({"JobID": "7", "State": "FAILED", "ExitCode": "3:0"})
    return ("7",)


@scene("job --gpus")
def _job_gpus(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    start = int(NOW) - 3600
    with open_for_writing() as ledger:
        store_runs(ledger, ran(start, 600))
        uses = [
            use_of(*steady(start, 600), start=start),
            use_of(start=start, gpu=GpuName("GPU-2", "", 1)),
        ]
        with ledger.transaction() as connection:
            store_uses(connection, uses, run_id=1)
    return ("--gpus", "1")


@scene("job several")
def _job_several(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    made = _jobs(patch)
    made.runs_now("7")
    made.waits("8", Reason="Priority")
    return ("7", "8")


@scene("wait")
def _wait(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _jobs(patch).ends("7")
    return ("7",)


@scene("cancel", "hold", "release", "requeue")
def _change(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _jobs(patch).waits("7")
    return ("7",)


@scene("interrupt")
def _interrupt(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _jobs(patch).runs_now("7")
    patch.setattr("slurmkit.jobs.job.Job.interrupt", lambda *_: None)
    return ("7", "--as", "timeout")


@scene("update")
def _update(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _jobs(patch).waits("7")
    return ("7", "--time", "10")


@scene("why")
def _why(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _jobs(patch).waits("7")
    answer = Explanation(
        job_id="7",
        name="train",
        user="alice",
        account="vision",
        partition="gpu",
        state="RUNNING",
        answer="job 7 runs on c1",
        source="squeue",
        taken=NOW,
    )
    patch.setattr("slurmkit.cli.why.explain", lambda *_, **__: answer)
    return ("7",)


@scene("tunnel")
def _tunnel(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _jobs(patch).runs_now("7")
    patch.setattr("slurmkit.cli.shell.choose_node", lambda *_: "c1")
    patch.setattr("slurmkit.cli.shell.is_reachable", lambda *_: True)
    return ("7", "6006")


# --- plans and submits ----------------------------------------------------------------------------


def _fixed_plan(name: str = "a") -> Any:
    note = Finding(severity="note", code="some", message="words", fix=(("time", "1"),))
    return Plan(
        submissions=(Submission("#!/bin/sh\n", (("job-name", name),)),),
        notes=(note,),
        spec=JobSpec(command=("hostname",), chdir="/", environment={"A": "1"}),
        capabilities_taken=NOW,
    )


@scene("plan", "submit")
def _plan(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    fake = slurm()
    patch.setattr("slurmkit.cli.submit.Cluster", lambda: Lab(fake))
    patch.setattr("slurmkit.cli.submit.plan", lambda *_: _fixed_plan())
    return ("--time", "1", "--chdir", "/home/alice", "--", "hostname")


def _flow(patch: pytest.MonkeyPatch, folder: Path) -> FlowLab:
    lab = FlowLab()
    for module in ("workflow", "workflow_tables", "sweep", "submit"):
        patch.setattr(f"slurmkit.cli.{module}.Cluster", lambda: lab, raising=False)
    token = "0123456789abcdef"
    patch.setattr("secrets.token_hex", lambda size: token[: 2 * size])
    patch.setattr("slurmkit.cluster.workflow_send._IN_FLIGHT", 0)
    text = (
        '[defaults]\ntime = "10"\nchdir = "/"\ncommand = ["x"]\n[jobs.a]\n[jobs.b]\nafter = ["a"]\n'
    )
    Path("p.toml").write_text(text, "utf-8")
    return lab


@scene("workflow plan")
def _workflow_plan(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _flow(patch, folder)
    flow = load_workflow(Path("p.toml"))
    planned = WorkflowPlan(workflow=flow, plans={"a": _fixed_plan(), "b": _fixed_plan("b")})
    patch.setattr("slurmkit.cli.workflow.plan_workflow", lambda *_: planned)
    return ("p.toml",)


@scene("workflow submit")
def _workflow_submit(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _flow(patch, folder)
    return ("p.toml",)


@scene("workflow show", "workflow cancel")
def _workflow_show(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _submit_workflow(patch, folder)
    return ("p",)


@scene("workflow list")
def _workflow_list(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _submit_workflow(patch, folder)
    return ()


@scene("workflow wait", "workflow resume")
def _workflow_wait(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    lab = _submit_workflow(patch, folder)
    for job_id in list(lab.sent):
        lab.end(job_id)
    return ("p",)


def _submit_workflow(patch: pytest.MonkeyPatch, folder: Path) -> FlowLab:
    lab = _flow(patch, folder)
    lab.submit_workflow(plan_workflow(load_workflow(Path("p.toml")), lab), file=Path("p.toml"))
    return lab


def _sweep(patch: pytest.MonkeyPatch, folder: Path) -> None:
    _flow(patch, folder)
    spec = JobSpec(
        command=("train", "{lr}"),
        sweep=Sweep(("lr",), (("1",), ("2",))),
        array="0-1",
        time="10",
        chdir="/",
    )
    sent = (SentArray("12", "0-1", 0),)
    record = ArrayRecord(token="0123", submitted=NOW, total=2, planned=1, sent=sent, spec=spec)
    points = (
        SweepPoint(index=0, parameters={"lr": "1"}, state="COMPLETED", exit_code="0:0"),
        SweepPoint(index=1, parameters={"lr": "2"}, state="FAILED", exit_code="1:0", job_id="12_1"),
    )
    results = SweepResults(first="12", runs=(record,), points=points)
    patch.setattr("slurmkit.cli.sweep.read_sweep_results", lambda *_: results)
    patch.setattr("slurmkit.cluster.sweeps.load_records", lambda *_: iter([record]))


@scene("sweep show")
def _sweep_show(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _sweep(patch, folder)
    return ("12",)


@scene("sweep rerun")
def _sweep_rerun(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _sweep(patch, folder)
    return ("12", "--dry-run")


@scene("sweep list")
def _sweep_list(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _sweep(patch, folder)
    return ()


# --- the cluster ----------------------------------------------------------------------------------


@scene("nodes", "gpus")
def _cluster(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _gpus(patch)
    return ("--node", "c3")


@scene("gpus free")
def _free(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _gpus(patch)
    return ("--free",)


@scene("topo")
def _topo(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    patch.setenv("SLURM_CONF", "slurm.conf")
    _gpus(patch)
    return ("c3",)


@scene("capabilities", "fairshare", "reservations")
def _cluster_limits(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _limits(patch)
    return ()


@scene("reservations create")
def _reservations_create(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _limits(patch)
    none = SimpleNamespace(jobs=(), refusals=lambda _: ())
    patch.setattr("slurmkit.cli.reservations.find_conflicts", lambda *_: none)
    patch.setattr("slurmkit.cli.reservations.require_operator", lambda *_: None)
    return ("course", "--start", "now", "--duration", "60", "--nodes", "c1", "--users", "bob", "-n")


@scene("reservations delete")
def _reservations_delete(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _limits(patch)
    patch.setattr(Cluster, "queue", lambda *_: SimpleNamespace(rows=()))
    patch.setattr("slurmkit.cli.reservations.require_operator", lambda *_: None)
    return ("maint", "--dry-run")


# --- slurmkit itself ------------------------------------------------------------------------------


@scene("config show")
def _config_show(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    settings = (ConfigSetting("ldap", "timeout", 5, "default", "seconds to wait"),)
    report = ConfigReport(settings, ())
    patch.setattr("slurmkit.cli.settings.inspect_configuration", lambda: report)
    return ()


@scene("config check")
def _config_check(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    patch.setattr(
        "slurmkit.cli.settings.inspect_configuration", lambda: SimpleNamespace(problems=())
    )
    return ()


@scene("doctor")
def _doctor(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    found = [Diagnosis("memory", "ok", "fine"), Diagnosis("part-limits", "note", "no", fix="yes")]
    patch.setattr("slurmkit.cli.settings.run_checks", lambda *_: found)
    return ()


@scene("plugins")
def _plugins(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    one = Plugin("launchers", "srun", "a:B", "slurmkit-hpc", "1")
    patch.setattr("slurmkit.cli.settings.registered_plugins", lambda: [one])
    patch.setattr("slurmkit.cli.settings.plugins", lambda _: {"srun": one})
    return ()


@scene("clusters")
def _clusters(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    status = RemoteClusterStatus(
        name="lab", host="login", reached=True, trouble="", release="24.11.5", latency=0.5, age=None
    )
    patch.setattr("slurmkit.cli.remote.load_clusters", lambda: {"lab": None})
    patch.setattr("slurmkit.cli.remote._read_status", lambda *_, **__: status)
    return ()


@scene("find")
def _find(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    pending = PendingSubmit("0123", "lab", "mark", "train", int(NOW))
    patch.setattr("slurmkit.cli.remote.load_pending_submits", lambda: [pending])
    return ()


@scene("send")
def _send(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    Path("train.py").write_text("", "utf-8")
    slurm_over_ssh = SshSlurmCommands.__new__(SshSlurmCommands)
    patch.setattr("slurmkit.cli.remote.Cluster", lambda: SimpleNamespace(slurm=slurm_over_ssh))
    done = SendResult("/home/alice/project", 1, 0, 10)
    patch.setattr("slurmkit.cli.remote.send_files", lambda *_: done)
    return ("train.py",)


# --- notebooks ------------------------------------------------------------------------------------


def _notebooks(patch: pytest.MonkeyPatch) -> None:
    made = _jobs(patch)
    made.runs_now("12")
    row = Cluster(made.slurm).queue().rows[0]
    server = WebServer("c1", 8888, int(NOW))
    one = ServerJob(row, server)
    patch.setattr("slurmkit.interactive.web_servers.read_servers", lambda *_: [one])
    patch.setattr("slurmkit.interactive.web_servers.read_server", lambda *_: one)
    patch.setattr("slurmkit.interactive.web_servers.make_cluster_folder", lambda *_: Path("n"))
    patch.setattr("slurmkit.interactive.web_servers.load_token", lambda *_: "secret")
    patch.setattr("slurmkit.cli.web_servers.wait_for_server", lambda *_, **__: server)
    patch.setattr("slurmkit.cli.web_servers.ssh_command", lambda *_: "ssh -L")


@scene("jupyter list", "code-server list")
def _jupyter_list(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _notebooks(patch)
    return ()


@scene("jupyter show", "jupyter stop", "code-server show", "code-server stop")
def _jupyter_show(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _notebooks(patch)
    return ("12",)


@scene("jupyter start", "code-server start")
def _jupyter_start(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _notebooks(patch)
    fake = slurm()
    patch.setattr("slurmkit.cli.web_servers.Cluster", lambda: Lab(fake))
    patch.setattr("slurmkit.interactive.web_servers.mark_server_job", lambda *_: None)
    return ("--time", "10", "--no-wait")


# --- images ---------------------------------------------------------------------------------------


def _images(patch: pytest.MonkeyPatch) -> None:
    record = ImageRecord(
        address="ab",
        references=("docker.io/library/ubuntu:24.04",),
        made=ImageOrigin(source="ubuntu:24.04", digest="sha256:00", architecture="amd64"),
        sha256="00",
        size=10,
        modified=1,
        changed=2,
        imported=NOW,
    )
    found = CachedImage(record, Path("/images/ab.sqsh"), NOW)
    cache = SimpleNamespace(
        entries=lambda: [found],
        folder=Path("/images"),
        check=lambda *_, **__: None,
        remove=lambda _: None,
    )
    patch.setattr("slurmkit_containers.cli.caches", lambda: [cache])
    patch.setattr("slurmkit_containers.cli.own_cache", lambda: cache)
    patch.setattr("slurmkit_containers.cli._find_image", lambda _: (cache, found))
    patch.setattr("slurmkit_containers.cli.import_here", lambda *_, **__: found)


@scene("image list")
def _image_list(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _images(patch)
    return ()


@scene("image inspect", "image import")
def _image_inspect(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _images(patch)
    return ("ubuntu:24.04",)


@scene("image prune")
def _image_prune(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _images(patch)
    return ("--size", "0")


@scene("image search")
def _image_search(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    entry = {"pytorch": CatalogueSection("nvcr.io/x:1", "550", "torchrun", "PyTorch")}
    patch.setattr("slurmkit_containers.cli.search_catalogue", lambda _: entry)
    return ()


# --- reports --------------------------------------------------------------------------------------


def make_report(name: str, **more: Any) -> Any:
    columns = tuple(map(Column, ("pi", "gpu_hours", "job", "state")))
    meta = Meta(
        report=name,
        by=("pi",),
        window=("2026-11-01", "2026-12-01"),
        timezone="UTC",
        filters={"pi": ("vogel",)},
        source="ledger x",
        clusters=("lab",),
        last_ingest=1,
        data_age=2,
        missing_before=None,
        made=int(NOW),
        **more,
    )
    row = {"pi": "vogel", "gpu_hours": 1.5, "job": "7", "state": None}
    return Report(meta, columns, (row,))


@scene(
    "report usage", "report benchmark", "report budget", "report capacity", "report efficiency",
    "report nodes", "report reclaimed", "report wait",
)  # fmt: skip
def _report_of_ledger(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    names = ("benchmark", "budget", "capacity", "efficiency", "nodes", "reclaimed", "wait")
    for name in ("usage", *names):
        made = make_report(name, total={"gpu_hours": 1.5} if name == "usage" else {})
        patch.setitem(ledger_reports.REPORTS, name, lambda *_, made=made: made)
    return ()


@scene("report explain")
def _report_explain(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    patch.setattr(
        "slurmkit_accounting.cli.ledger_reports.explain", lambda *_: make_report("explain")
    )
    return ()


@scene("report explain row")
def _report_explain_row(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    made = Evidence(
        {"id": 3, "gpus": None}, "7|x", ("JobID", "Name"), "sacct", ((1, {"a": 2}),), ()
    )
    patch.setattr(read, "ledger", lambda _: contextlib.nullcontext())
    patch.setattr(read, "evidence", lambda *_: made)
    return ("--row", "3")


@scene("report reconcile")
def _report_reconcile(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    patch.setattr(
        "slurmkit_accounting.cli.ledger_reports.reconcile",
        lambda *_, **__: make_report("reconcile"),
    )
    return ()


@scene("report idle")
def _report_idle(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    patch.setattr(
        "slurmkit_accounting.cli.ledger_reports.idle_report", lambda *_, **__: make_report("idle")
    )
    return ()


@scene("report mail")
def _report_mail(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _ledger(patch)
    one = (SimpleNamespace(name="vogel"), Path("mails/vogel.eml"))
    patch.setattr("slurmkit_accounting.cli.ledger_reports.write_month_mails", lambda *_: [one])
    return ("--month", "2026-10", "--timezone", "UTC", "--dry-run", "mails")


# --- the ledger -----------------------------------------------------------------------------------


def _ledger(patch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def opened(*_: object) -> Any:
        yield SimpleNamespace(source="/books.db", transaction=contextlib.nullcontext)

    for module in ("maintenance", "people", "ledger", "ingest", "ledger_reports"):
        for name in ("open_for_reading", "open_for_writing"):
            patch.setattr(f"slurmkit_accounting.cli.{module}.{name}", opened, raising=False)


def _ledger_scene(name: str, target: str, value: Any, *words: str) -> None:
    def made(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
        _ledger(patch)
        patch.setattr(f"slurmkit_accounting.{target}", lambda *_, **__: value())
        return words

    scene(name)(made)


def _status() -> Any:
    cluster = ClusterStatus(
        name="lab",
        tracks_gpus=None,
        only_user="",
        last=LastIngest("sacct", 1, None, 2, 3, 4, 5),
        covers=[(1, 2)],
        files=[],
        gaps=[],
        lag=None,
        runs=6,
        open=1,
        runaways=[],
        **dict.fromkeys(("gone", "retracted", "doubtful", "rejects", "reused"), 0),
    )
    return LedgerStatus("/books.db", "0004", None, int(NOW), [cluster])


def _verified() -> Any:
    return VerifyResult("00ff", 6, [])


def _rejected() -> Any:
    known = {"id": 1, "cluster": "lab", "source": "sacct", "at": 2, "reason": "no", "line": "7|x"}
    more = {"read": False, "seen": 0, "layout": None}
    dismissed = dict.fromkeys(("dismissed", "dismissed_by", "dismissed_because"))
    return [StoredReject(**known, **more, **dismissed)]


def _retracted() -> Any:
    return [RetractedRun("lab", "7", "alice", "FAILED", 1, 2, None, 4)]


def _closed() -> Any:
    return (ClosedMonth(1, 1, "lab", "2026-10", "UTC", int(NOW), 1, "00ff", (1, 2)),)


def _unmapped() -> Any:
    who = {"cluster": "lab", "account": "vision", "user": "mallory", "counted_as": "unmapped"}
    amounts = {"runs": 2, "gpu_hours": 8.0, "cpu_hours": 16.0}
    return [UnmappedUsage(**who, **amounts, gap="stranger", fix="add them")]


def _history() -> Any:
    return [
        History(
            kind="group",
            name="vision",
            display_name="Vision",
            mail=None,
            directory_id="1",
            active=None,
            first_seen=1,
            closed_at=None,
            lines=(HistoryLine("member", "alice", 0, None),),
        )
    ]


def _overrides() -> Any:
    return (PiOverride(account="climate", pi="chen"),)


def _xdmod() -> Any:
    names = (("alice", "Alice", "A"),)
    return XdmodFiles(names=names, hierarchy=(), groups=(), without_pi=("vision",))


_ledger_scene("ledger status", "cli.maintenance.load_ledger_status", _status)
_ledger_scene(
    "ledger upgrade",
    "cli.maintenance.upgrade_ledger",
    lambda: SimpleNamespace(before="0004", copy=None),
)
_ledger_scene("ledger verify", "cli.maintenance.verify", _verified)
_ledger_scene("ledger rejects", "cli.maintenance.load_rejects", _rejected)
_ledger_scene("ledger retract", "cli.maintenance.retract", _retracted, "7")
_ledger_scene("ledger export", "cli.maintenance.copy_ledger", lambda: "00ff", "sqlite:////copy.db")
_ledger_scene("ledger import", "cli.maintenance.copy_ledger", lambda: "00ff", "sqlite:////copy.db")
_ledger_scene("ledger close", "cli.maintenance.close_month", _closed, "2026-10")
_ledger_scene("ledger people unmapped", "people.unmapped.load_unmapped_usage", _unmapped)
_ledger_scene("ledger people show", "people.history.load_histories", _history, "vision")
_ledger_scene(
    "ledger people xdmod", "people.xdmod.load_xdmod_files", _xdmod, "out", "--unit", "Uni"
)
_ledger_scene("ledger people overrides check", "people.sync.load_configured_overrides", _overrides)


@scene("ledger rebuild")
def _rebuild(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _ledger(patch)
    held = contextlib.nullcontext()
    patch.setattr("slurmkit_accounting.cli.maintenance.hold_ledger_lock", lambda *_: held)
    patch.setattr("slurmkit_accounting.cli.maintenance.rebuild_usage", lambda *_: None)
    return ()


@scene("ledger ingest")
def _ingest(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _ledger(patch)
    done = Ingested("lab", (1, 2), IngestCounts(read=3, new=3), False, 1, 0.5)
    patch.setattr("slurmkit_accounting.cli.ingest.check_source", lambda *_, **__: None)
    patch.setattr("slurmkit_accounting.cli.ingest.ingest", lambda *_, **__: done)
    return ()


@scene("ledger people sync")
def _people_sync(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _ledger(patch)
    heard = SimpleNamespace(max_vanish=0.1, data=None, notes=("odd",), read="1 person")
    synced = sync.PeopleSync((PeopleChange("person", "added", "alice"),))
    patch.setattr(sync, "read_people_sources", lambda _: heard)
    patch.setattr(sync, "sync_people", lambda *_, **__: synced)
    return ()


@scene("notify settings")
def _notify_settings(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    service = SimpleNamespace(ask=lambda *_: MailSettings("daily", "failures"))
    patch.setattr("slurmkit_accounting.cli.notify.configured_remote", lambda: service)
    return ()


@scene("reclaim check")
def _reclaim_check(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    policies = {"idle": ReclaimPolicy()}
    for name, value in {
        "cli.reclaim.load_policies": lambda _: policies,
        "cli.reclaim.open_for_reading": contextlib.nullcontext,
        "reclaim.check.check_report": lambda *_, **__: make_report("reclaim"),
    }.items():
        patch.setattr(f"slurmkit_accounting.{name}", value)
    return ("--month", "2026-10", "--timezone", "UTC")


SCENES.update(allocation_scenes.SCENES)
SCENES.update(benchmark_scenes.SCENES)
SCENES.update(site_scenes.SCENES)
SCENES.update(ssh_scenes.SCENES)


@scene("reclaim keep")
def _reclaim_keep(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    service = SimpleNamespace(
        ask=lambda *_: LeftAloneJob("lab", "12", int(NOW) + 86400, "reads data")
    )
    patch.setattr("slurmkit_accounting.cli.reclaim.configured_remote", lambda: service)
    return ("12", "--reason", "reads data")
