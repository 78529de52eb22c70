"""`slurmkit jupyter` and `code-server`: what is submitted and left, found and waited for."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs_lab import FakeJobs
from recorded_lab import capabilities, standing
from shell_completion import tab
from waiting import PATIENCE, wait_until

from slurmkit.cli import web_servers as module
from slurmkit.cli.main import run_to_exit_code
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadConfig, NoSuchJob, NotOver, SlurmError, SlurmkitError
from slurmkit.interactive import web_servers
from slurmkit.interactive.web_servers import (
    CODE_SERVER,
    JUPYTER,
    ServerKind,
    ServerSection,
    server_command,
    wait_for_server,
)
from slurmkit.jobs import waiting
from slurmkit.planning.planner import Plan, plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.spec.jobspec import JobSpec

# A server that says what it was told, and ends when it is asked to.
STUB = """#!/bin/sh
cp "${1#--config=}" told.py
umask >umask
grep SigIgn /proc/$$/status >ignored
echo "$JUPYTER_RUNTIME_DIR" >runtime
env >environment
tr '\\0' ' ' </proc/$$/cmdline >argv
touch up
exec sleep 60
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a job starts; a folder of servers beside it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program = tmp_path / "bin" / "jupyter-server"
    program.parent.mkdir()
    program.write_text(STUB, "utf-8")
    program.chmod(0o755)
    (tmp_path / "work").mkdir()
    return tmp_path


def started(
    place: Path, *server: str, setup: str = "", kind: ServerKind = JUPYTER, **env: str
) -> subprocess.Popen[bytes]:
    words = server_command(kind, str(place / "servers"), server, ServerSection(setup=setup))
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    given = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "c1", "PATH": path, **env}
    with (place / "errors").open("wb") as errors:
        return subprocess.Popen(words, cwd=place / "work", env=given, stderr=errors)


def until(path: Path) -> None:
    wait_until(path.exists, lambda: str(path))


def test_a_server_has_a_token_of_its_own_that_goes_when_it_ends(place: Path) -> None:
    work, here = place / "work", place / "servers" / "12"
    with started(place) as process:
        until(work / "up")
        token = web_servers.load_token(place / "servers", "12")
        server = web_servers.load_server(place / "servers", "12")
        modes = {p.name: p.stat().st_mode & 0o777 for p in (here, here / "token")}
        process.send_signal(signal.SIGTERM)  # to bash alone
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert server is not None
    assert (server.node, server.port > 1024) == ("c1", True)
    assert len(token) == 48
    assert modes == {"12": 0o700, "token": 0o600}
    assert not here.exists()
    told = {name: (work / name).read_text() for name in ("environment", "argv", "told.py")}
    assert not [name for name, text in told.items() if token in text]
    assert "MASTER_" not in told["environment"]
    assert (work / "runtime").read_text().strip() == str(here / "runtime")
    assert (work / "umask").read_text().strip() == f"{_umask():04o}"
    assert int((work / "ignored").read_text().split()[1], 16) & 0b110 == 0  # INT and QUIT
    compile(told["told.py"], "config.py", "exec")


# A code-server that says what it was told, and ends when it is asked to.
CODE_STUB = """#!/bin/sh
printf '%s\\n' "$@" >argv
cp "$2" told.yaml
env >environment
touch up
exec sleep 60
"""


def test_code_server_is_told_address_and_password_in_a_file(place: Path) -> None:
    work, here = place / "work", place / "servers" / "12"
    (place / "bin" / "code-server").write_text(CODE_STUB, "utf-8")
    (place / "bin" / "code-server").chmod(0o755)
    env = {"PASSWORD": "mine", "HASHED_PASSWORD": "mine", "SLURMD_NODENAME": "localhost"}
    with started(place, kind=CODE_SERVER, **env) as process:
        until(work / "up")
        token = web_servers.load_token(place / "servers", "12")
        server = web_servers.load_server(place / "servers", "12")
        mode = (here / "config.yaml").stat().st_mode & 0o777
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert server is not None
    assert mode == 0o600
    assert not here.exists()
    assert (work / "told.yaml").read_text().splitlines() == [
        f"bind-addr: 0.0.0.0:{server.port}",  # its own address is that of a loopback
        "auth: password",
        f'password: "{token}"',  # some tokens look like numbers
        "cert: false",
    ]
    environment = (work / "environment").read_text()
    assert "PASSWORD" not in environment
    assert (work / "argv").read_text().splitlines() == [
        "--config", str(here / "config.yaml"), "--disable-telemetry", "--disable-update-check",
        str(work),
    ]  # fmt: skip
    assert token not in environment


def test_a_job_without_code_server_says_so(place: Path) -> None:
    with started(place, kind=CODE_SERVER) as process:
        assert process.wait(PATIENCE) == 127
    said = (place / "errors").read_text()
    assert "no code-server on the PATH of" in said
    assert "load it in [code-server] setup" in said


def _umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old


def test_a_job_without_jupyter_says_so_and_other_tasks_do_nothing(place: Path) -> None:
    (place / "bin" / "jupyter-server").unlink()
    for tool in ("bash", "grep"):
        (place / "bin" / tool).symlink_to(str(shutil.which(tool)))
    with started(place, PATH=str(place / "bin")) as process:
        assert process.wait(PATIENCE) == 127
    assert "name yours after --" in (place / "errors").read_text()
    assert not (place / "servers" / "12").exists()
    with started(place, SLURM_PROCID="1") as process:
        assert process.wait(PATIENCE) == 0


def test_what_a_killed_run_left_is_gone_before_anything_else(place: Path) -> None:
    left(place / "servers", "12")
    with started(place, setup='ls "$slurmkit_state" >listed') as process:
        until(place / "work" / "up")
        process.terminate()
        process.wait(PATIENCE)
    assert (place / "work" / "listed").read_text() == ""


def test_setup_and_a_program_of_ones_own(place: Path) -> None:
    mine = place / "bin" / "mine"
    (place / "bin" / "jupyter-server").rename(mine)
    with started(place, "mine", setup="export FROM=setup") as process:
        until(place / "work" / "up")
        process.terminate()
        process.wait(PATIENCE)
    assert "FROM=setup" in (place / "work" / "environment").read_text()
    site = ServerSection(command="/opt/jupyter lab")
    assert server_command(JUPYTER, "/f", (), site)[-2:] == ("/opt/jupyter", "lab")
    assert server_command(JUPYTER, "/f", ("x",), site)[-1] == "x"
    with pytest.raises(BadConfig, match=r"\[jupyter\] command: \"a 'b\": No closing quotation"):
        server_command(JUPYTER, "/f", (), ServerSection(command="a 'b"))


class Submitting(Cluster):
    """Plans by the recorded cluster, and takes what is submitted."""

    sent: list[Plan]

    def capabilities(self, *, refresh: bool = False) -> object:  # type: ignore[override]
        del refresh
        return capabilities()

    def submit(self, plan: Plan, **_: object) -> object:  # type: ignore[override]
        self.sent.append(plan)
        return self.job("12")


@pytest.fixture
def sent(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    found: list[Plan] = []

    def planned(spec: JobSpec, _: object) -> Plan:
        return plan_offline(spec, SiteState(capabilities(), standing()))

    def cluster() -> Submitting:
        made = Submitting(FakeJobs().slurm)
        made.sent = found
        return made

    monkeypatch.chdir(place / "work")
    monkeypatch.setattr(module, "plan", planned)
    monkeypatch.setattr(module, "Cluster", cluster)
    return found


def run(*words: str) -> int:
    return run_to_exit_code(module.jupyter_group, list(words))


def test_options_alone_submit_a_job_that_is_known_from_then_on(
    sent: list[Plan], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--gpus-per-node=a100:2", "--time=10", "--no-wait", "--", "x", "--y") == 0
    assert capsys.readouterr().out == "12\n"
    (made,) = sent
    assert made.spec.command[-2:] == ("x", "--y")
    options = dict(made.submissions[0].options)
    assert options["job-name"] == "jupyter"
    assert "no-requeue" in options
    assert "srun" not in made.submissions[0].script  # its own srun has all of the job
    folder = place / "state" / "slurmkit" / "jupyter" / "lab"
    assert made.spec.command[4] == str(folder)
    assert (folder / "12").stat().st_mode & 0o777 == 0o700


def test_code_servers_are_kept_apart_from_notebooks(
    sent: list[Plan], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_to_exit_code(module.code_server_group, ["--time=10", "--no-wait", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (code, row["job_id"], row["password"]) == (0, "12", None)
    (made,) = sent
    assert dict(made.submissions[0].options)["job-name"] == "code-server"
    assert (place / "state" / "slurmkit" / "code-server" / "lab" / "12").is_dir()
    assert not (place / "state" / "slurmkit" / "jupyter").exists()
    assert tab("slurmkit code-server show 1") == ["12"]


def test_a_job_that_was_sent_is_told_whatever_comes_after(
    sent: list[Plan], servers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (servers / "12").touch()  # no folder can be made there
    assert run("--time=10", "--no-wait", "--nccl-debug") == 0
    assert capsys.readouterr().out == "12\n"
    assert "export NCCL_DEBUG=INFO\n" in sent[0].submissions[0].script


def test_a_container_sees_where_servers_leave_word(
    sent: list[Plan], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = place / "config.toml"
    config.write_text('[containers]\nruntimes = ["apptainer", "oci"]\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    assert run("--time=10", "--no-wait", "--container-image=/x.sif") == 0
    assert run("--time=10", "--no-wait", "--container-image=/bundle") == 0
    assert "srun --cpus-per-task" in sent[0].submissions[0].script
    container = sent[0].spec.container
    assert container is not None
    assert container.mounts == (str(place / "state" / "slurmkit" / "jupyter" / "lab"),)
    assert sent[1].spec.container is not None
    assert not sent[1].spec.container.mounts  # a bundle's are its own affair


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--array=1-3",), "array does not work in an interactive job"),
        (("--script=x",), "script does not work in an interactive job"),
        (("--job-file=command.toml",), "command does not work in an interactive job"),
        (("--job-file=script.toml",), "script does not work in an interactive job"),
        (("--log-per-rank",), "log-per-rank does not work in an interactive job"),
        (("--container-image=/x.sif", "--ntasks=2"), "one task on one node"),
        (("--container-image=/x.sif", "--nodes=2"), "one task on one node"),
        (("--launch=torchrun",), "--launch does not work here; start the launcher in the notebook"),
        (("--gpus-per-node=a100:99",), "no notebook was started: 1 error"),
    ],
)
def test_what_cannot_be_is_refused_before(
    sent: list[Plan], words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("command.toml").write_text("command = ['x']\n", "utf-8")
    Path("script.toml").write_text("script = '#!/bin/sh'\n", "utf-8")
    assert run("--time=10", *words) == 2
    assert not sent
    assert says in capsys.readouterr().err


@pytest.fixture
def servers(place: Path) -> Path:
    folder = place / "state" / "slurmkit" / "jupyter" / "lab"
    folder.mkdir(parents=True)
    return folder


def left(folder: Path, job_id: str, port: int = 61000, node: str = "c1") -> None:
    (folder / job_id).mkdir(parents=True, exist_ok=True)
    (folder / job_id / "token").write_text("secret", "ascii")
    record = {"node": node, "port": port, "started": 1_700_000_000}
    (folder / job_id / "server.json").write_text(json.dumps(record), "utf-8")


def notebooks(jobs: FakeJobs) -> Submitting:
    return Submitting(jobs.slurm)


def test_what_is_left_of_jobs_that_ended_is_removed(servers: Path) -> None:
    jobs = FakeJobs()
    jobs.runs_now("12")
    jobs.waits("13")
    jobs.runs_now("15")  # a job without a server
    left(servers, "12")
    left(servers, "13")  # of a run before
    left(servers, "14")
    found = web_servers.read_servers(JUPYTER, notebooks(jobs))
    assert [(each.row.raw_id, each.server is not None) for each in found] == [
        ("12", True),
        ("13", False),
    ]
    assert sorted(path.name for path in servers.iterdir()) == ["12", "13"]
    with pytest.raises(NoSuchJob, match="slurmkit jupyter list"):
        web_servers.read_server(JUPYTER, notebooks(jobs), "15")


def test_the_server_of_a_job_in_a_hidden_partition_is_kept(servers: Path) -> None:
    jobs = FakeJobs()
    jobs.runs_now("12")
    jobs.hidden.add("12")
    left(servers, "12")
    (found,) = web_servers.read_servers(JUPYTER, notebooks(jobs))
    assert found.server is not None
    assert (servers / "12" / "token").exists()


def test_a_server_whose_job_a_list_lacks_is_kept(servers: Path) -> None:
    jobs = FakeJobs()
    jobs.runs_now("12")
    left(servers, "12")
    left(servers, "14")
    complete = jobs.slurm._answers["squeue"]
    jobs.slurm._answers["squeue"] = lambda argv, stdin: (
        "" if "--me" in argv else complete(argv, stdin)
    )
    assert web_servers.read_servers(JUPYTER, notebooks(jobs)) == []
    assert [path.name for path in servers.iterdir()] == ["12"]


def test_nothing_is_asked_or_removed_without_any(servers: Path) -> None:
    jobs = FakeJobs()
    (servers / "notes").mkdir()
    assert web_servers.read_servers(JUPYTER, notebooks(jobs)) == []
    assert not jobs.slurm.asked
    assert (servers / "notes").exists()


@pytest.fixture
def answering() -> Iterator[int]:
    """A port where something speaks HTTP."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_it_is_waited_for_until_it_answers_and_what_goes_on_is_told(
    servers: Path, answering: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise SlurmError("busy")

    monkeypatch.setattr(module, "explain", silent)
    jobs, told = FakeJobs(), list[str]()
    jobs.waits("12", Reason="Resources")
    left(servers, "12", answering, "127.0.0.1")  # of a run before

    def goes_on(words: str) -> None:
        told.append(words)
        if "waits" in words:
            (servers / "12" / "server.json").unlink()
            jobs.runs_now("12")
        else:
            left(servers, "12", answering, "127.0.0.1")

    found = wait_for_server(
        JUPYTER, jobs.cluster().job("12"), servers, goes_on, why_pending=module._waiting_line
    )
    assert found.port == answering
    assert "waits: the resources it asks for are not free now" in told[0]
    assert told[1:] == ["job 12 runs on c1; waiting for Jupyter to answer"]


def test_a_run_that_is_requeued_has_all_the_time_again(
    servers: Path, answering: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, now = FakeJobs(), [1.0]
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    jobs.runs_now("12", NodeList="c1")

    def goes_on(words: str) -> None:
        if "c1" in words:
            jobs.waits("12", Reason="Resources")
        elif words == "waits":
            now[0] = 1000.0
            jobs.runs_now("12", NodeList="c2")
        else:
            left(servers, "12", answering, "127.0.0.1")

    job = jobs.cluster().job("12")
    found = wait_for_server(JUPYTER, job, servers, goes_on, why_pending=lambda *_: "waits")
    assert found.port == answering


def test_a_job_that_ends_first_or_stays_silent_is_no_notebook(servers: Path) -> None:
    jobs = FakeJobs()
    jobs.ends("12", "FAILED", ExitCode="127:0")
    with pytest.raises(SlurmkitError, match="no notebook: job 12 failed"):
        wait_for_server(JUPYTER, jobs.cluster().job("12"), servers, lambda _: None)
    jobs.runs_now("13")
    with pytest.raises(NotOver, match="slurmkit jupyter show 13"):
        wait_for_server(JUPYTER, jobs.cluster().job("13"), servers, lambda _: None, patience=0.01)


def test_show_has_the_way_and_list_no_token(
    servers: Path,
    answering: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = FakeJobs()
    jobs.runs_now("12")
    left(servers, "12", answering, "127.0.0.1")
    monkeypatch.setattr(module, "Cluster", lambda: notebooks(jobs))
    assert run("list") == 0
    assert run("list", "--json") == 0
    shown = capsys.readouterr().out
    assert f"http://127.0.0.1:{answering}/" in shown
    assert "secret" not in shown
    assert run("show", "12", "--local-port", "8888") == 0
    shown = capsys.readouterr().out
    assert "http://127.0.0.1:8888/?token=secret" in shown
    assert f" -L 8888:127.0.0.1:{answering} " in shown
    assert f"--cluster NAME tunnel 12 {answering} --open --local-port 8888\n" in shown
    assert run("show", "12", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["port"] == answering
    assert run("show", "13") == 1
    assert run("lst") == 2


def test_show_tells_the_password_of_code_server(
    place: Path, answering: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = FakeJobs()
    jobs.runs_now("12")
    left(place / "state" / "slurmkit" / "code-server" / "lab", "12", answering, "127.0.0.1")
    monkeypatch.setattr(module, "Cluster", lambda: notebooks(jobs))
    assert run_to_exit_code(module.code_server_group, ["list"]) == 0
    assert "secret" not in capsys.readouterr().out
    assert run_to_exit_code(module.code_server_group, ["show", "12"]) == 0
    shown = capsys.readouterr().out
    assert f"http://127.0.0.1:{answering}/\n" in shown
    assert "Password  secret\n" in shown
    assert "End       slurmkit code-server stop 12\n" in shown
    assert run_to_exit_code(module.code_server_group, ["show", "12", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["password"], row["url"]) == ("secret", f"http://127.0.0.1:{answering}/")


def test_tab_offers_options_subcommands_and_ones_own_ids(servers: Path) -> None:
    web_servers.mark_server_job(servers, "12")
    assert {"list", "show", "start", "stop"} <= set(tab("slurmkit jupyter "))
    assert tab("slurmkit jupyter --gpus-per-n") == ["--gpus-per-node"]
    assert "--no-wait" in tab("slurmkit jupyter --time 10 --no")
    assert tab("slurmkit jupyter show 1") == ["12"]
    assert tab("slurmkit jupyter stop 12 ") == ["12"]
