"""Each check on recorded settings, changed to provoke it."""

from __future__ import annotations

import json
import locale
import os
import pwd
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from doctor_site import ME, Site, look
from prometheus_lab import FakePrometheus, Series, dcgm, times

from slurmkit.cli.settings import doctor_command
from slurmkit.config.extras import install_command
from slurmkit.config.paths import filesystem_type
from slurmkit.doctor import accounting, installation
from slurmkit.doctor.case import Check, CheckFinding, Diagnosis, Severity
from slurmkit.doctor.checks import CHECKS, run_checks
from slurmkit.errors import (
    BadConfig,
    BadInput,
    ControllerDown,
    DatabaseDown,
    LedgerError,
    Refused,
    SlurmMissing,
)
from slurmkit.jobs.backends.pyslurm_usable import PyslurmCheck


@pytest.fixture(params=["22.05", "24.11", "26.05"])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param)


LOCAL = {check.name for check in installation.CHECKS} | {"directory"}


def test_a_site_in_order(site: Site) -> None:
    """No check of Slurm finds anything where nothing is wrong."""
    checks = [check for check in CHECKS if check.name not in LOCAL]
    found = list(run_checks(site.slurm(), checks))
    assert [each for each in found if each.severity != "ok"] == []
    assert len(found) == len(checks) >= 28


def settings(**changes: str) -> Callable[[Site], None]:
    return lambda site: site.config.update(changes)


def answers(**changes: str | Exception) -> Callable[[Site], None]:
    return lambda site: site.answers.update(changes)


def nodes(old: str, new: str) -> Callable[[Site], None]:
    def spoil(site: Site) -> None:
        assert re.search(old, site.nodes)
        site.nodes = re.sub(old, new, site.nodes)

    return spoil


def partitions(old: str, new: str) -> Callable[[Site], None]:
    def spoil(site: Site) -> None:
        assert re.search(old, site.partitions)
        site.partitions = re.sub(old, new, site.partitions)

    return spoil


def every(*spoils: Callable[[Site], None]) -> Callable[[Site], None]:
    def spoil(site: Site) -> None:
        for each in spoils:
            each(site)

    return spoil


UNLIMITED = settings(DefMemPerCPU="UNLIMITED", DefMemPerNode="UNLIMITED")
BUDGET = "|vision||" + "|gres/gpu=10" + "|" * 9 + "\n"


def drained(reason: str, since: float) -> Callable[[Site], None]:
    return nodes(
        r"(NodeName=c1 .*)State=\S+(.*)\n",
        rf"\1State=IDLE+DRAIN\2 Reason={reason} [root@{since:.0f}]\n",
    )


PROVOKED = [
    ("slurmctld", answers(ping=Refused("Slurmctld(primary) at ctld is DOWN")), "error", "is DOWN"),
    ("slurmctld", answers(ping=ControllerDown("no source")), "error", "no source"),
    ("slurmctld", answers(ping="what?"), "unknown", "names no slurmctld"),
    (
        "slurmctld",
        answers(ping="Slurmctld(primary) at a is UP\nSlurmctld(backup1) at b is DOWN\n"),
        "warning",
        "(backup1) at b",
    ),
    ("slurmdbd", answers(cluster=DatabaseDown("no answer")), "error", "no answer"),
    ("slurmdbd", answers(cluster="other|x\n"), "warning", "does not know the cluster"),
    ("slurmdbd", settings(AccountingStorageType="(null)"), "error", "AccountingStorageType=none"),
    ("slurmdbd-backlog", answers(sdiag="DBD Agent queue size: 7\n"), "note", "7 records"),
    ("slurmdbd-backlog", answers(sdiag="DBD Agent queue size: 7000\n"), "warning", "7000 records"),
    ("slurmdbd-backlog", answers(sdiag="nonsense"), "unknown", "does not print"),
    ("release", settings(SLURM_VERSION="20.11.9"), "warning", "older than 22.05"),
    ("release", settings(SLURM_VERSION="27.11.0"), "note", "newer than 26.05"),
    ("client-release", answers(version="slurm 99.05.1\n"), "error", "from Slurm 99.5.1"),
    ("client-release", answers(version="slurm 21.08.8\n"), "warning", "from Slurm 21.8.8"),
    ("munge", answers(unmunge=Refused("unmunge: Error: Expired credential")), "error", "Expired"),
    ("munge", answers(munge=SlurmMissing("not on the PATH")), "unknown", "munge is not on"),
    (
        "munge",
        every(settings(AuthType="auth/slurm"), answers(munge=SlurmMissing("not on the PATH"))),
        "note",
        "AuthType=auth/slurm, and munge does not work here: munge is not on the PATH",
    ),
    (
        "metrics",
        settings(MetricsType="metrics/openmetrics"),
        "warning",
        "MetricsType=metrics/openmetrics without MetricsAuthUsers",
    ),
    (
        "metrics",
        settings(
            MetricsType="metrics/openmetrics",
            PrivateData="jobs",
            MetricsParameters="ignore_private_data",
        ),
        "warning",
        "with MetricsParameters=ignore_private_data",
    ),
    (
        "cgroup-names",
        settings(SLURM_VERSION="26.05.5", CgroupPlugin="cgroup/v2", CgroupJobIdPaths="no"),
        "note",
        "CgroupPlugin=cgroup/v2 without CgroupJobIdPaths",
    ),
    ("gpu-tres", settings(AccountingStorageTRES="cpu,mem,license/x"), "error", "no gres/gpu"),
    (
        "gpu-tres",
        settings(AccountingStorageTRES="cpu,gres/gpu,gres/gpu:a100,gres/shard,gres/mps"),
        "warning",
        "lacks gres/gpu:a100_1g.5gb, gres/gpu:a100_3g.20gb, gres/gpu:h100",
    ),
    ("enforce", settings(AccountingStorageEnforce="none"), "warning", "without an association"),
    ("enforce", settings(AccountingStorageEnforce="associations"), "warning", "none are set"),
    (
        "enforce",
        every(settings(AccountingStorageEnforce="associations"), answers(limits="x" + BUDGET)),
        "warning",
        "none are set",  # those of another cluster
    ),
    ("enforce", settings(AccountingStorageEnforce="limits"), "warning", "which QOS"),
    ("store-flags", settings(AccountingStoreFlags="job_script"), "note", "job_comment, job_env"),
    ("gathering", settings(JobAcctGatherType="(null)"), "warning", "is none"),
    ("gathering", settings(JobAcctGatherType="jobacct_gather/none"), "warning", "is none"),
    ("private-data", settings(PrivateData="jobs,usage"), "note", "PrivateData=jobs,usage"),
    ("private-data", settings(PrivateData="nodes"), "warning", "PrivateData=nodes"),
    ("fairshare", settings(PriorityWeightFairShare="0"), "warning", "is 0"),
    ("fairshare", settings(PriorityType="priority/basic"), "warning", "priority/basic"),
    ("billing", partitions(r",GRES/gpu=4.0", ""), "warning", "of mig has no GRES/gpu"),
    ("select-type", settings(SelectType="select/linear"), "error", "select/linear"),
    ("memory", settings(SelectTypeParameters="CR_CORE"), "warning", "memory is not allocated"),
    ("memory", UNLIMITED, "warning", "not set for gpu, untyped, mig, mps, cpu"),
    (
        "memory",
        every(
            UNLIMITED, partitions(r"(Name=(?!cpu).*)DefMemPerNode=UNLIMITED", r"\1DefMemPerCPU=9")
        ),
        "warning",
        "not set for cpu,",
    ),
    ("time-limits", partitions(r"(=cpu .*)MaxTime=\S+", r"\1MaxTime=UNLIMITED"), "warning", "cpu"),
    ("time-limits", partitions(r"(=cpu .*)DefaultTime=\S+", r"\1DefaultTime=NONE"), "note", "cpu"),
    ("part-limits", settings(EnforcePartLimits="NO"), "warning", "EnforcePartLimits=NO"),
    ("mixtures", nodes("Partitions=untyped", "Partitions=untyped,gpu"), "warning", "gpu has typed"),
    ("mixtures", nodes("Partitions=mig", "Partitions=mig,gpu"), "warning", "MIG slices"),
    ("preemption", settings(SlurmctldParameters="(null)"), "warning", "without send_user_signal"),
    ("requeue", settings(JobRequeue="0"), "note", "JobRequeue=0"),
    ("job-age", settings(MinJobAge="2 sec"), "warning", "MinJobAge=2"),
    ("job-age", settings(MinJobAge="0 sec"), "warning", "MinJobAge=0"),
    ("requeue-delay", settings(AuthInfo="(null)"), "note", "waits 120 s"),
    ("requeue-delay", settings(AuthInfo="cred_expire=600"), "note", "waits 600 s"),
    ("nodes-out", drained("bad DIMM", time.time() - 90), "note", "c1 drained: bad DIMM (root"),
    ("nodes-out", drained("bad DIMM", time.time() - 90000), "warning", "c1 drained: bad DIMM"),
    (
        "gres-registered",
        drained("gres/gpu count reported lower than configured (0 < 8)", 1),
        "error",
        "c1 registered fewer resources",
    ),
    ("prolog", drained("Prolog error", 1), "error", "c1: Prolog error"),
    ("prolog-alloc", settings(Prolog="/etc/slurm/prolog"), "note", "PrologFlags lacks Alloc"),
    (
        "prolog-alloc",
        settings(**{"Prolog[0]": "/etc/slurm/prolog", "PrologFlags": "DeferBatch"}),
        "note",
        "PrologFlags lacks Alloc",
    ),
    ("gpus-confined", settings(ConstrainDevices="no"), "warning", "ConstrainDevices=no"),
    ("gpus-confined", settings(TaskPlugin="task/affinity"), "warning", "TaskPlugin=task/affinity"),
]


@pytest.mark.parametrize("flags", ["Alloc", "Alloc,Contain,X11"])
def test_a_prolog_that_runs_when_a_job_starts(site: Site, flags: str) -> None:
    settings(Prolog="/etc/slurm/prolog", PrologFlags=flags)(site)
    assert [each.severity for each in look(site, "prolog-alloc")] == ["ok"]


@pytest.mark.parametrize(("name", "spoil", "severity", "says"), PROVOKED)
def test_what_is_wrong_is_found(
    site: Site, name: str, spoil: Callable[[Site], None], severity: str, says: str
) -> None:
    assert [each.severity for each in look(site, name)] == ["ok"]
    spoil(site)
    found = [each for each in look(site, name) if says in each.message]
    assert [each.severity for each in found] == [severity]
    if severity != "unknown":
        assert all((found[0].meaning, found[0].fix, found[0].where))


@pytest.mark.parametrize(
    "other",
    [
        {"SLURM_VERSION": "25.11.2"},
        {"CgroupPlugin": "cgroup/v1"},
        {"CgroupPlugin": "disabled"},
        {"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/affinity"},
    ],
    ids=["older", "v1", "disabled", "unused"],
)
def test_where_no_cgroup_has_a_sluid_there_is_nothing_to_say(other: dict[str, str]) -> None:
    site = Site("26.05")
    site.config |= {"CgroupPlugin": "cgroup/v2", "CgroupJobIdPaths": "no"}
    assert [each.severity for each in look(site, "cgroup-names")] == ["note"]
    site.config |= other
    assert [each.severity for each in look(site, "cgroup-names")] == ["ok"]


@pytest.mark.parametrize("types", ["(null)", "auth/munge"])
def test_slurm_must_make_the_tokens_that_clients_show(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: str
) -> None:
    settings(AuthAltTypes=types)(site)
    assert [each.severity for each in look(site, "tokens")] == ["ok"]
    section = '[ledger.service]\nauth = "jwt"\nurl = "https://ledger.example.org"\n'
    (tmp_path / "site.toml").write_text(section, "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(tmp_path / "site.toml"))
    (found,) = look(site, "tokens")
    assert (found.severity, found.fix[:22]) == ("warning", "AuthAltTypes=auth/jwt ")
    settings(AuthAltTypes="auth/munge,auth/jwt")(site)
    assert [each.severity for each in look(site, "tokens")] == ["ok"]


def test_every_check_of_slurm_can_find_something() -> None:
    elsewhere = {"clock", "enforce-safe", "gpu-metrics", "own-association", "tokens"}  # below
    names = {check.name for check in CHECKS} - LOCAL - elsewhere
    assert names == {name for name, *_ in PROVOKED}
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_limits_that_are_set_and_not_enforced_are_an_error(site: Site) -> None:
    site.config["AccountingStorageEnforce"] = "associations,qos"
    site.answers["limits"] = site.settings["ClusterName"] + BUDGET
    (found,) = look(site, "enforce")
    assert (found.severity, "1 are set" in found.message) == ("error", True)
    site.answers["limits"] = ""
    site.answers["qos"] = "high" + "|" * 12 + "gres/gpu=8|||\n"
    assert look(site, "enforce")[0].severity == "error"


def test_budgets_want_safe(site: Site) -> None:
    site.config["AccountingStorageEnforce"] = "associations,limits,qos"
    assert look(site, "enforce-safe")[0].severity == "ok"  # no budget is set
    site.answers["limits"] = site.settings["ClusterName"] + BUDGET
    (found,) = look(site, "enforce-safe")
    assert (found.severity, "account vision" in found.message) == ("warning", True)
    assert found.fix == "AccountingStorageEnforce=associations,limits,qos,safe"


def test_the_fix_keeps_what_is_tracked(site: Site) -> None:
    site.config["AccountingStorageTRES"] = "cpu,mem,license/x"
    (found,) = look(site, "gpu-tres")
    assert found.fix.startswith("AccountingStorageTRES=gres/gpu,gres/gpu:a100,")
    assert found.fix.endswith(",gres/mps,gres/shard,license/x")


def in_use(nodes: str) -> str:
    """The nodes with a job on the first GPU of each."""
    changed = re.sub(r" Gres=gpu:(\w+):\S+", r"\g<0> GresUsed=gpu:\1:1(IDX:0)", nodes)
    assert changed != nodes
    return changed


def test_prometheus_knows_every_node_with_gpus(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    monkeypatch.setattr("slurmkit.config.files.config_paths", lambda: [file])
    assert look(site, "gpu-metrics")[0].severity == "ok"  # the site has none
    names = re.findall(r"NodeName=(\S+)(?=[^\n]*Gres=gpu)", site.nodes.replace("\n   ", " "))
    prometheus = FakePrometheus()
    with prometheus.serving() as url:
        file.write_text(f"[gpu_metrics.prometheus]\nurl = '{url}'\n")
        (found,) = look(site, "gpu-metrics")
        assert found.severity == "warning"
        assert "with the node in Hostname or hostname" in found.message
        now = int(time.time())
        prometheus.series = dcgm(now - 300, now, 80, hostname=names[0], gpu="0")
        (found,) = look(site, "gpu-metrics")
        assert (found.severity, "no samples of" in found.message) == ("note", True)
        for name in names[1:]:
            prometheus.series += dcgm(now - 300, now, 80, hostname=name, gpu="0")
        site.nodes = in_use(site.nodes)
        labels = {"hostname": names[0], "gpu": "0", "hpc_job": "7"}
        found = look(site, "gpu-metrics")
        assert [each.severity for each in found] == ["note"]  # it names no jobs there
        assert "which jobs hold the GPUs of" in found[0].message
        for name in names:
            labels["hostname"] = name
            prometheus.series += dcgm(now - 300, now, 80, **labels)
        assert look(site, "gpu-metrics")[0].severity == "ok"
    assert look(site, "gpu-metrics")[0].severity == "warning"  # it is away


def test_our_exporter_in_prometheus_is_what_the_ledger_asks_for(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The check asked for the metric of `report idle` alone."""
    file = tmp_path / "config.toml"
    monkeypatch.setattr("slurmkit.config.files.config_paths", lambda: [file])
    names = re.findall(r"NodeName=(\S+)(?=[^\n]*Gres=gpu)", site.nodes.replace("\n   ", " "))
    site.nodes = in_use(site.nodes)
    now = int(time.time())
    series = []
    for name in names:
        labels = {"node": name, "uuid": f"GPU-{name}", "gpu": "0"}
        values = times(now - 300, now, 1)
        series += [
            Series("slurmkit_gpu_utilization_ratio", values, **labels),
            Series("slurmkit_gpu_job", values, **labels | {"exported_job": "7"}),
        ]
    with FakePrometheus(*series).serving() as url:
        file.write_text(f"[gpu_metrics.prometheus]\nurl = '{url}'\n")
        assert look(site, "gpu-metrics")[0].severity == "ok"
        file.write_text(f"[gpu_metrics.prometheus]\nurl = '{url}'\nnode_label = 'host'\n")
        assert look(site, "gpu-metrics")[0].severity == "warning"
        file.write_text(f"[gpu_metrics.prometheus]\nurl = '{url}'\njob_label = 'jobnumber'\n")
        (found,) = look(site, "gpu-metrics")
        assert "which jobs hold the GPUs of" in found.message


@pytest.mark.parametrize(
    ("seconds", "severity"), [(0, "ok"), (-30, "warning"), (30, "warning"), (-400, "error")]
)
def test_clocks(site: Site, seconds: float, severity: str) -> None:
    site.answers["config"] = f"Configuration data as of {int(time.time() + seconds)}\nA = b\n"
    (found,) = look(site, "clock")
    assert found.severity == severity
    assert severity == "ok" or ("behind" if seconds > 0 else "ahead of") in found.message


def test_whoever_asks_wants_an_association(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "current_user", lambda: "zoe")
    assert look(site, "own-association")[0].severity == "error"
    site.config["AccountingStorageEnforce"] = "(null)"
    assert look(site, "own-association")[0].severity == "note"
    monkeypatch.setattr(accounting, "current_user", lambda: "alice")
    assert look(site, "own-association")[0].severity == "ok"


def test_the_service_needs_the_rights_of_an_operator(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "current_user", lambda: "slurmkit")
    (found,) = look(site, "own-association")
    assert (found.severity, "lacks AdminLevel Operator" in found.message) == ("warning", True)
    assert found.fix == "sacctmgr -i add user name=slurmkit account=root adminlevel=Operator"
    site.answers["user"] = "slurmkit|Operator\n"
    assert look(site, "own-association")[0].severity == "ok"


def person(name: str, uid: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, 20000, "", f"/home/{name}", shell))


def test_people_of_the_directory(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those in /etc/passwd, who have left, or are no people; bob is in another cluster."""
    everybody = [
        pwd.getpwnam("root"), person("alice", 10001), person("bob", 10002),
        person("trent", 10003, "/usr/sbin/nologin"), person("daemonish", 200),
    ]  # fmt: skip
    monkeypatch.setattr(accounting.pwd, "getpwall", lambda: everybody)
    (found,) = look(site, "directory")
    assert found.severity == "warning"
    assert found.message == "1 of 2 people in the directory have no association: bob"
    assert found.fix == "sacctmgr add user bob account=ACCOUNT"
    monkeypatch.setattr(accounting.pwd, "getpwall", lambda: everybody[:2])
    assert look(site, "directory")[0].severity == "ok"
    monkeypatch.setattr(accounting.pwd, "getpwall", lambda: everybody[:1])
    assert "enumeration is off" in look(site, "directory")[0].message
    site.answers["user"] = f"{ME}|None\n"
    (found,) = look(site, "directory")
    assert (found.severity, found.message[:11]) == ("unknown", "not checked")


def test_nothing_stops_the_others(site: Site) -> None:
    """Slurmctld is down: what needs it says so, once asked, and the rest goes on."""
    site.answers["ping"] = Refused("Slurmctld(primary) at ctld is DOWN")
    slurm = site.slurm()
    found = {each.check: each for each in run_checks(slurm)}
    assert set(found) == {check.name for check in CHECKS}
    assert found["slurmctld"].severity == "error"
    assert found["memory"] == Diagnosis("memory", "unknown", "slurmctld is down")
    assert found["commands"].severity in ("ok", "error")
    assert slurm.asked.count(["scontrol", "ping"]) == 1
    assert not any("config" in argv for argv in slurm.asked)


def test_a_check_that_breaks_says_so(site: Site) -> None:
    def broken(case: object) -> object:
        raise RuntimeError("oops")

    (found,) = run_checks(site.slurm(), [Check("x", "fine", broken)])  # type: ignore[arg-type]
    assert (found.severity, found.message) == ("unknown", "RuntimeError: oops")


def test_each_command_runs_once(site: Site) -> None:
    slurm = site.slurm()
    list(run_checks(slurm))
    asked = [tuple(argv) for argv in slurm.asked]
    assert len(asked) == len(set(asked))


# --- This machine ---------------------------------------------------------------------------------


def test_commands(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert look(site, "commands")[0].severity == "ok"
    monkeypatch.setattr(
        installation.shutil, "which", lambda name: None if name == "sprio" else "/x"
    )
    assert look(site, "commands")[0].message == "not on the PATH: sprio"
    assert look(site, "commands")[0].severity == "warning"


def test_configuration(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[nonsense]\nx = 1\n")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    (found,) = look(site, "configuration")
    assert (found.severity, found.where) == ("error", str(file))
    assert "nonsense" in found.message


def test_extras(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        installation, "find_spec", lambda name: None if name == "paramiko" else name
    )
    (found,) = look(site, "extras")
    assert (found.severity, found.fix) == ("note", install_command("ssh"))


@pytest.mark.parametrize(
    ("verdict", "severity"),
    [
        (PyslurmCheck(version="26.5.0"), "ok"),
        (PyslurmCheck("it ends the process", "wait", "26.5.0"), "warning"),
        (PyslurmCheck("PySlurm is not installed", "install it"), "note"),
    ],
)
def test_pyslurm(
    site: Site, monkeypatch: pytest.MonkeyPatch, verdict: PyslurmCheck, severity: str
) -> None:
    monkeypatch.setattr(installation, "check_pyslurm", lambda _: verdict)
    (found,) = look(site, "pyslurm")
    assert (found.severity, found.fix) == (severity, verdict.fix)


def test_an_installed_pyslurm_is_not_compared_with_a_slurmctld_that_is_down(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: name)
    monkeypatch.setattr(installation, "check_pyslurm", lambda _: pytest.fail("it takes 20 s"))
    site.answers["ping"] = Refused("Slurmctld(primary) at ctld is DOWN")
    (found,) = look(site, "pyslurm")
    assert (found.severity, found.message) == ("unknown", "slurmctld is down")


def test_ledger(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = look(site, "ledger")
    assert (found.severity, "there is no ledger" in found.message) == ("note", True)

    def unreachable() -> object:
        raise LedgerError("cannot use the ledger: connection refused")

    monkeypatch.setattr("slurmkit_accounting.read.ledger", unreachable)
    monkeypatch.setenv("SLURMKIT_DB", "postgresql+psycopg://x@y/z")
    assert look(site, "ledger")[0].severity == "warning"


def test_a_service_that_is_stopped(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    url = f"unix:{tmp_path}/ledger.sock"
    config.write_text(f'[ledger.service]\nurl = "{url}"\nuser = "{ME}"\n')
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    (found,) = look(site, "ledger")
    assert (found.severity, "does not answer" in found.message) == ("error", True)
    assert found.fix.startswith("systemctl status slurmkit-ledger")


def test_a_folder_of_this_machine_is_no_alarm(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "filesystem_type", lambda _: "ext4")
    monkeypatch.chdir(tmp_path)
    (found,) = look(site, "shared-files")
    assert (found.severity, found.fix) == ("note", f"srun ls -d {tmp_path}")
    monkeypatch.setattr(installation, "filesystem_type", lambda _: "nfs4")
    assert look(site, "shared-files")[0].severity == "ok"


MAILS = "/etc/slurm/slurmkit-mail"


def test_mail_program(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> tuple[str, str]:
        (one,) = look(site, "mail-program")
        return one.severity, one.message

    assert found() == (
        "note", "MailProg=/bin/true: nobody gets the mails asked for with --mail-type"
    )  # fmt: skip
    site.config["MailProg"] = "/usr/bin/mail"
    assert found()[0] == "ok"
    site.config["MailProg"] = MAILS
    config, spool = tmp_path / "config.toml", tmp_path / "spool"
    config.write_text(f'[ledger.service]\nuser = "{ME}"\n')
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    assert found() == ("error", f"MailProg={MAILS}, but [job_mail] spool is not set here")
    with config.open("a") as file:
        file.write(f'[job_mail]\nspool = "{spool}"\n')
    assert found() == ("error", f"MailProg={MAILS}, but the spool {spool} does not exist here")
    monkeypatch.setattr(installation.os, "geteuid", lambda: 12345)
    monkeypatch.setattr(installation, "current_user", lambda: "alice")
    assert found()[0] == "ok"  # what alice may not see is no fault
    config.write_text("")
    monkeypatch.setattr(installation, "current_user", lambda: "root")
    monkeypatch.setattr(installation.os, "geteuid", lambda: 0)
    assert found()[0] == "note"  # root may be on a login node
    config.write_text(f'[job_mail]\nspool = "{spool}"\n[ledger.service]\nuser = "{ME}"\n')
    monkeypatch.setattr(installation, "current_user", lambda: "alice")
    monkeypatch.setattr(installation.os, "geteuid", lambda: 12345)
    assert "only root and the service's account can check the spool" in found()[1]
    site.config["MailProg"] = "/bin/mail"
    assert found() == ("warning", "[job_mail] spool is set, but MailProg=/bin/mail")


SLURM, SERVICE, OTHER = 64030, 990, 777  # uids, and gids of their own groups


@pytest.mark.parametrize(
    ("owner", "group", "mode", "said"),
    [
        (SLURM, SERVICE, 0o2770, ""),
        (SERVICE, SLURM, 0o770, ""),  # events have this group anyway
        (SLURM, SERVICE, 0o770, r"\(drwxrwx---\) has no setgid bit: events get slurmctld's group"),
        (
            SLURM,
            SERVICE,
            0o2750,
            r"account mailer cannot read and write the spool .*\(drwxr-s---\)",
        ),
        (SLURM, OTHER, 0o2770, "account mailer cannot read and write"),
        (OTHER, SERVICE, 0o2770, r"slurmctld \(slurm\) cannot write the spool"),
        (SLURM, SERVICE, 0o2777, "everybody can write the spool"),
    ],
)
def test_who_may_use_the_spool_of_mails(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: int,
    group: int,
    mode: int,
    said: str,
) -> None:
    """Root may do all, so the accounts of Slurm and of the service are what counts."""
    users = {"slurm": SLURM, "mailer": SERVICE}

    def user(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", users[name], users[name], "", "/", "/bin/sh"))

    monkeypatch.setattr(installation.pwd, "getpwnam", user)
    monkeypatch.setattr(installation.os, "getgrouplist", lambda _, gid: [gid])
    monkeypatch.setattr(installation.os, "geteuid", lambda: 0)
    monkeypatch.setattr(installation, "_group_of", lambda name: name)
    spool = tmp_path / "spool"
    spool.mkdir()
    real = spool.stat()
    fields = [stat.S_IFDIR | mode, *real[1:4], owner, group, *real[6:]]
    of_spool = os.stat_result(fields)
    stat_of = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda path, **how: of_spool if path == spool else stat_of(path, **how)
    )
    config = tmp_path / "config.toml"
    config.write_text(f'[job_mail]\nspool = "{spool}"\n[ledger.service]\nuser = "mailer"\n')
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    site.config |= {"MailProg": MAILS, "SlurmUser": "slurm(64030)"}
    (found,) = look(site, "mail-program")
    if not said:
        assert found.severity == "ok"
        return
    assert re.search(said, found.message)
    assert (found.severity, found.fix) == (
        "error", f"install -d -o slurm -g mailer -m 2770 {spool}"
    )  # fmt: skip


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda rw
23 22 0:30 / /home rw - autofs systemd-1 rw
24 23 0:31 / /home rw - nfs4 fs:/home rw
25 24 8:17 / /home/my\\040dir rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/tmp", "ext4"), ("/home/alice", "nfs4"), ("/home/my dir/x", "xfs"), ("/homes", "ext4")],
)
def test_filesystem(path: str, kind: str) -> None:
    """The NFS hides the automounter's own mount on /home, which is listed first."""
    assert filesystem_type(Path(path), MOUNTS) == kind


def test_locale(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "getencoding", lambda: "ANSI_X3.4-1968")
    (found,) = look(site, "terminal")
    assert (found.severity, found.fix) == ("note", "export LC_ALL=C.UTF-8")


def run(monkeypatch: pytest.MonkeyPatch, site: Site, *args: str) -> tuple[int, str, str]:
    slurm = site.slurm()
    monkeypatch.setattr("slurmkit.cluster.cluster._LOCAL", slurm)
    monkeypatch.setattr(installation.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(accounting, "current_user", lambda: "alice")
    done = CliRunner().invoke(doctor_command, args, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_the_command(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.config |= {"EnforcePartLimits": "NO", "JobRequeue": "0"}
    code, shown, said = run(monkeypatch, site)
    assert code == 0
    assert shown.startswith("warning  part-limits: EnforcePartLimits=NO\n")
    assert "fix: EnforcePartLimits=ALL   [slurm.conf]" in shown
    assert "ok " not in shown
    assert "1 warning, " in said
    assert re.search(r"[2-9] notes, ", said)
    assert "ok       memory: " in run(monkeypatch, site, "--all")[1]


def test_an_error_ends_with_1(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.answers["cluster"] = ControllerDown("x")
    site.config["AccountingStorageTRES"] = "cpu,mem"
    code, shown, _ = run(monkeypatch, site, "--json")
    found = {each["check"]: each for each in json.loads(shown)["rows"]}
    assert code == 1
    assert found["gpu-tres"]["severity"] == "error"
    assert set(found["gpu-tres"]) == {"check", "severity", "message", "meaning", "fix", "where"}


@pytest.mark.parametrize(
    ("severities", "code", "line"),
    [
        ((), 0, "slurmkit ok: 1 ok\n"),
        (("note",), 0, "slurmkit ok: 1 note, 1 ok\n"),
        (("unknown", "note"), 3, "slurmkit unknown: 1 note, 1 unknown, 1 ok; c0: a / b\n"),
        (("unknown", "warning"), 1, "slurmkit warning: 1 warning, 1 unknown, 1 ok; c1: a / b\n"),
        (("warning", "error"), 2, "slurmkit error: 1 error, 1 warning, 1 ok; c1: a / b\n"),
        (
            ("error",) * 5,
            2,
            "slurmkit error: 5 errors, 1 ok; c0: a / b; c1: a / b; c2: a / b; 2 more\n",
        ),
    ],
)
def test_it_is_a_plugin_for_monitoring(
    severities: tuple[Severity, ...],
    code: int,
    line: str,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        Check(
            f"c{number}", "fine", lambda _, severity=each: iter([CheckFinding(severity, "a | b")])
        )
        for number, each in enumerate(severities)
    ]
    fine = Check("fine", "nothing wrong", lambda _: iter(()))
    monkeypatch.setattr("slurmkit.cli.settings.CHECKS", (*found, fine))
    assert run(monkeypatch, site, "--exit-code")[:2] == (code, line)


def test_the_plugin_prints_one_line_on_a_real_site(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.config |= {"EnforcePartLimits": "NO", "SelectType": "select/linear"}
    code, shown, said = run(monkeypatch, site, "--exit-code")
    assert (code, said, shown.count("\n")) == (2, "", 1)
    assert shown.startswith("slurmkit error: ")
    assert "select-type: SelectType=select/linear" in shown
    with pytest.raises(BadInput, match="leave out --json and --all"):
        run(monkeypatch, site, "--exit-code", "--all")


def test_a_configuration_that_cannot_be_read_is_unknown_to_the_plugin(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise BadConfig("cannot read\nit")

    monkeypatch.setattr("slurmkit.cli.settings.Cluster", fail)
    code, shown, _ = run(monkeypatch, site, "--exit-code")
    assert (code, shown.count("\n")) == (3, 1)
    assert shown.startswith("slurmkit unknown: 1 unknown; slurmkit: cannot read")
