"""The parts of the spawner for JupyterHub that need no JupyterHub: see also tests/cluster."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pwd
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from planner_lab import Lab
from recorded_lab import capabilities, slurm, standing
from slurmkit_plugins.jupyterhub import as_person, in_job
from slurmkit_plugins.jupyterhub.pages import (
    Chosen,
    describe_choice,
    describe_wait,
    make_form,
    make_notice,
    read_chosen,
    read_form,
)
from slurmkit_plugins.jupyterhub.person import (
    Cancelled,
    Choice,
    Offered,
    Submit,
    accounts_of,
    default_profiles,
    offer,
    submit,
)
from waiting import wait_until

from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.jobs.info import JobInfo
from slurmkit.state.model import Association

NOW = 1_800_000_000.0
TOKEN = "0123456789abcdef0123456789abcdef"
OFFERED = Offered(
    (
        Choice("Large", "8:00:00", ("more than you have",)),
        Choice("Small", "1:00:00", start=int(NOW)),
        Choice('"<b>', "1:00:00", start=int(NOW) + 7200, waited="at most 5 min"),
    ),
    ("vision", "<i>"),
)


def wish(**changed: object) -> Submit:
    fields = {
        "profiles": {"Small": {"cpus-per-task": 1, "time": "1:00:00"}},
        "profile": "",
        "time": "",
        "account": "",
        "environment": {"JUPYTERHUB_API_TOKEN": TOKEN, "JUPYTERHUB_USER": "alice"},
        "command": ("jupyterhub-singleuser", "--debug"),
        "name": "jupyterhub",
    }
    return Submit(**fields | changed)  # type: ignore[arg-type]


def info(state: str, reason: str = "", started: int | None = None) -> JobInfo:
    return JobInfo(
        job_id="7", raw_id="7", name="jupyterhub", user="alice", account="vision",
        partition="gpu", state=state, reason=reason, node_list="c1", tres="", elapsed="0:01",
        submitted=1, started=started, source="squeue",
    )  # fmt: skip


class TestForm:
    def test_first_profile_that_may_start_is_checked(self) -> None:
        form = make_form(OFFERED, Chosen(), NOW, 3600)
        assert 'value="Large" disabled' in form
        assert 'value="Small" checked' in form
        assert form.count(" checked") == 1

    def test_last_choice_is_checked_unless_it_is_refused_now(self) -> None:
        form = make_form(OFFERED, Chosen(profile='"<b>', time="3:00", account="<i>"), NOW, 3600)
        assert 'value="&quot;&lt;b&gt;" checked' in form
        assert 'value="3:00"' in form
        assert "<option selected>&lt;i&gt;</option>" in form
        assert 'value="Small" checked' in make_form(OFFERED, Chosen(profile="Large"), NOW, 3600)

    def test_nothing_of_a_person_is_html(self) -> None:
        form = make_form(OFFERED, Chosen(time='"><script>'), NOW, 3600)
        assert "<script>" not in form + make_notice("<script>")
        assert "<b>" not in form
        assert "<i>" not in form

    def test_one_account_is_not_asked_for(self) -> None:
        assert "select" not in make_form(Offered(OFFERED.choices, ("vision",)), Chosen(), NOW, 3600)

    def test_lines_about_a_profile(self) -> None:
        refused, at_once, later = (describe_choice(each, NOW, 3600) for each in OFFERED.choices)
        assert refused == ["Not for you now: more than you have"]
        assert at_once == ["Time limit 1:00:00", "May start at once (Slurm's estimate)"]
        assert later[1].endswith("(Slurm's estimate); the hub gives up after 1:00:00")
        assert later[2] == "Such jobs waited: at most 5 min"

    def test_what_was_chosen(self) -> None:
        form = {"profile": ["Small"], "time": [" 2:00:00 "], "other": ["x"], "account": []}
        assert read_chosen(read_form(form)) == Chosen("Small", "2:00:00")
        assert read_chosen({}) == Chosen()
        with pytest.raises(BadInput, match="they are text: profile, time, account"):
            read_chosen({"time": 3})


@pytest.mark.parametrize(
    ("job_id", "known", "words"),
    [
        ("", None, "Submitting"),
        ("7", None, "is submitted"),
        ("7", info("PENDING", "None"), "waits for Slurm to look at it"),
        ("7", info("PENDING", "Priority"), "slurmkit why 7"),
        ("7", info("PENDING", "Resources", 4_000_000_000), "It may start at"),
        ("7", info("FAILED"), "has ended"),
        ("7", info("RUNNING"), "runs on c1; Jupyter is starting"),
    ],
)
def test_what_a_server_waits_for(job_id: str, known: JobInfo | None, words: str) -> None:
    percent, said = describe_wait(job_id, known)
    assert words in said
    assert 0 < percent < 100


class TestOffer:
    def test_each_gpu_type_has_a_profile(self) -> None:
        assert list(default_profiles(capabilities())) == ["No GPU", "1 × a100", "1 × h100"]

    def test_what_the_person_cannot_have_says_why(self) -> None:
        jobs: dict[str, dict[str, object]] = {
            "Fits": {},
            "Long": {"time": "400-0"},
            "Wrong": {"no-key": 1},
        }
        fits, long, wrong = offer(Lab(slurm()), jobs).choices
        assert (fits.refusals, fits.time) == ((), "4:00:00")
        assert fits.start is not None
        assert "MaxTime" in long.refusals[0]
        assert wrong.refusals[0].startswith("profile 'Wrong' of the hub: no key 'no-key'")

    def test_default_account_comes_first(self) -> None:
        one = Association(account="art", user="alice")
        known = standing()
        both = type(known)(
            taken=0, user="alice", associations=(one, *known.associations),
            default_account="vision",
        )  # fmt: skip
        assert accounts_of(both) == ("vision", "art")


class TestSubmit:
    @pytest.fixture(autouse=True)
    def own_folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def test_job_of_a_server(self, tmp_path: Path) -> None:
        scripts: list[str] = []
        border = slurm(sbatch=lambda _, script: scripts.append(script or "") or "7")
        assert submit(Lab(border), wish(time="2:00:00")) == "7"
        (script,) = scripts
        assert "#SBATCH --time=2:00:00" in script
        assert "#SBATCH --no-requeue" in script
        assert f"#SBATCH --output={tmp_path}/slurmkit/jupyterhub/%j.log" in script
        assert "export JUPYTERHUB_USER=alice" in script
        assert "jupyterhub-singleuser --debug" in script

    def test_token_is_in_a_file_that_the_job_removes_at_once(self, tmp_path: Path) -> None:
        scripts: list[str] = []
        border = slurm(sbatch=lambda _, script: scripts.append(script or "") or "7")
        submit(Lab(border), wish())
        (script,) = scripts
        assert TOKEN not in script
        assert 'rm -f "$slurmkit_file"' in script
        assert "squeue" not in script
        (file,) = tmp_path.glob("slurmkit/secrets/*/7")
        assert TOKEN in file.read_text("utf-8")

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"profile": "Large"}, "no profile 'Large'; the hub has: Small"),
            ({"time": "soon"}, "soon"),
            ({"account": "a b"}, "account"),
            ({"environment": {"A B": "x"}}, "A B"),
        ],
    )
    def test_what_is_refused(self, changed: dict[str, object], words: str) -> None:
        with pytest.raises(SlurmkitError, match=words):
            submit(Lab(slurm()), wish(**changed))


class Hub(BaseHTTPRequestHandler):
    """A hub that notes what it hears, and whether something listens there by then."""

    heard: list[dict[str, object]]
    answers: list[int]

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        told["listens"] = in_job.listens(told["port"])
        self.heard.append({**told, "path": self.path, "by": self.headers["Authorization"]})
        self.send_response(self.answers.pop(0))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[type[Hub]]:
    kind = type("OneHub", (Hub,), {"heard": [], "answers": [204]})
    server = HTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kind.url = f"http://127.0.0.1:{server.server_port}/hub/api"
    yield kind
    server.shutdown()
    server.server_close()


# A server that starts slowly, and ends with SIGTERM, or with a code when nobody sends one.
SERVER = """
import os, signal, socket, sys, time
from urllib.parse import urlsplit
time.sleep(0.5)
one = socket.create_server(("0.0.0.0", urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
time.sleep(float(sys.argv[1]))
sys.exit(5)
"""


def start(hub: type[Hub], *server: str) -> subprocess.Popen[str]:
    variables = {
        "JUPYTERHUB_API_TOKEN": TOKEN,
        "JUPYTERHUB_API_URL": hub.url,  # type: ignore[attr-defined]
        "JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:0/user/zoë/",
        "JUPYTERHUB_USER": "zoë b",
        "SLURM_JOB_ID": "7",
    }
    return subprocess.Popen(
        [sys.executable, "-c", inspect.getsource(in_job), *server],
        env=os.environ | variables, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


class TestInJob:
    def test_hub_hears_of_the_port_once_the_server_listens(self, hub: type[Hub]) -> None:
        hub.answers[:] = [503, 204]  # the first one of a hub that starts
        job = start(hub, sys.executable, "-c", SERVER, "4")
        job.communicate()
        assert job.returncode == 5
        assert len(hub.heard) == 2
        for told in hub.heard:
            assert told["listens"]
            assert told["job_id"] == "7"
            assert told["path"] == "/hub/api/users/zo%C3%AB%20b/slurmkit-server"
            assert told["by"] == f"token {TOKEN}"

    def test_job_ends_when_the_hub_does_not_wait_for_it(self, hub: type[Hub]) -> None:
        hub.answers[:] = [404]
        job = start(hub, sys.executable, "-c", SERVER, "600")
        _, said = job.communicate()
        assert job.returncode == 9
        assert "the hub does not wait for this job" in said

    def test_server_hears_of_the_end_of_its_job(self, hub: type[Hub]) -> None:
        job = start(hub, sys.executable, "-c", SERVER, "600")
        wait_until(lambda: hub.heard)
        job.terminate()
        job.communicate()
        assert job.returncode == 9

    def test_program_that_is_not_there(self, hub: type[Hub]) -> None:
        job = start(hub, "/nowhere/jupyterhub-singleuser")
        _, said = job.communicate()
        assert job.returncode == 127
        assert "cannot start /nowhere/jupyterhub-singleuser: No such file" in said

    def test_port_of_another_user_is_not_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one = HTTPServer(("127.0.0.1", 0), Hub)
        assert in_job.listens(one.server_port)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert not in_job.listens(one.server_port)
        one.server_close()


class TestAsPerson:
    @pytest.fixture(autouse=True)
    def somebody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(as_person, "find_person", lambda name: pwd.getpwnam("nobody"))

    def ask(self, monkeypatch: pytest.MonkeyPatch, program: str) -> object:
        argv = [sys.executable, "-c", program]
        monkeypatch.setattr(as_person, "command_as", lambda person: (argv, {}))
        return asyncio.run(as_person.ask_as("zoe", wish(), Cancelled))

    def test_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.ask(monkeypatch, 'print(\'{"type": "Cancelled"}\')') == Cancelled()

    @pytest.mark.parametrize(
        ("program", "words"),
        [
            ('print(\'{"type": "Failed", "message": "no"}\')', "^no$"),
            ('print(\'{"type": "Ended", "words": "no"}\')', "gave another answer"),
            ("import sys; sys.exit('no\x1b')", r"no answer as zoe \(exit code 1\): no\\x1b"),
            ("while True: print('x' * 65536)", "larger than 1 MiB"),
            ("import os; os.close(1); import time; time.sleep(600)", "did not answer as zoe"),
        ],
    )
    def test_what_a_person_makes_of_it(
        self, monkeypatch: pytest.MonkeyPatch, program: str, words: str
    ) -> None:
        monkeypatch.setattr(as_person, "_SECONDS", 3.0)
        with pytest.raises(SlurmkitError, match=words):
            self.ask(monkeypatch, program)


def test_hub_starts_nothing_for_root_and_strangers() -> None:
    with pytest.raises(SlurmkitError, match="the hub starts no jobs as root"):
        as_person.find_person("root")
    with pytest.raises(SlurmkitError, match="getent passwd nobody-of-that-name"):
        as_person.find_person("nobody-of-that-name")


def test_rights_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    person = pwd.getpwnam("nobody")
    monkeypatch.setenv("SECRET", "of the hub")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    argv, rights = as_person.command_as(person)
    assert argv[1] == "-I"
    assert (rights["user"], rights["group"]) == (person.pw_uid, person.pw_gid)
    assert "SECRET" not in rights["env"]
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    argv, rights = as_person.command_as(person)
    assert argv[:5] == ["sudo", "-n", "-u", "nobody", "--"]
    assert rights == {}
