"""Submits over a line that is cut: never twice, never lost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from cutting_proxy import CuttingProxy
from ssh_lab import Spool, Sshd, shared_sshd

from slurmkit.errors import Refused, SentUnknown, SshError
from slurmkit.jobs.backends.commands import SubmitOverrides
from slurmkit.jobs.backends.ssh import (
    NeverRan,
    OnceBackend,
    _submit_lines,
    load_pending_submit,
    load_pending_submits,
)
from slurmkit.slurm.ssh.authentication import ask_nobody
from slurmkit.slurm.ssh.hosts import ClusterSection
from slurmkit.slurm.ssh.login import SshSlurmCommands
from slurmkit.slurm.ssh.shell import command_group, command_line
from slurmkit.spec.submission import Submission

CUTS = int(os.environ.get("SLURMKIT_TEST_CUTS", "40"))
SCRIPT = "#!/bin/bash\n#SBATCH --time=5\n" + "echo 'it''s \"here\" $HOME \\n ünï'\n" * 40 + "true\n"


assert shared_sshd  # a fixture


class Lab:
    """A cluster behind a proxy."""

    def __init__(self, sshd: Sshd, folder: Path) -> None:
        self.proxy = CuttingProxy(sshd.port)
        sshd.trusted(self.proxy.port)
        sshd.configure(self.proxy.port)
        self.spool = Spool(folder)
        section = ClusterSection(ssh_config=str(sshd.config), path=str(self.spool.bin))
        self.slurm = SshSlurmCommands("lab", section, ask_nobody)
        self.backend = OnceBackend(self.slurm, patience=30)
        self.home = folder / "home"

    def submit(self, name: str = "j") -> str:
        submission = Submission(SCRIPT, (("job-name", name), ("comment", "my own")))
        return self.backend.submit(submission, SubmitOverrides(comment="slurmkit:other"))

    def cut_once(self, there: Path) -> None:
        """Cut the connection as soon as a file is there."""
        while not there.exists():
            time.sleep(0.05)
        self.proxy.cut()


@pytest.fixture
def lab(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Lab(sshd, tmp_path)
    yield made
    made.slurm.connection.close()
    made.proxy.close()


def test_a_submit_is_whole_and_carries_a_token(lab: Lab) -> None:
    job_id = lab.submit()
    assert lab.spool.ids == [job_id]
    assert lab.spool.script(job_id) == SCRIPT
    argv = (lab.spool.jobs / job_id / "argv").read_text("utf-8").splitlines()
    (comment,) = (word for word in argv if word.startswith("--comment="))
    own, other, token = comment.removeprefix("--comment=my ").split()
    assert (own, other) == ("own", "slurmkit:other")
    assert token.startswith("slurmkit:")
    assert load_pending_submits() == []


@pytest.mark.parametrize("shell", ["dash", "bash", "bash --posix"])
@pytest.mark.parametrize(
    "script",
    [
        SCRIPT,
        "#!/bin/sh\nprintf '\x01\x01' | wc -c\n",
        "#!/bin/sh\n\x01\x7f\x01\n",
        "#!/bin/sh\nx=$(echo `:` \\\n)\x01\x01'\n",
        "#!/bin/sh\n\x01\x01 without a line end",
    ],
)
def test_a_script_arrives_byte_for_byte(script: str, shell: str, tmp_path: Path) -> None:
    """/bin/sh is bash on RHEL and SUSE."""
    if shutil.which(shell.split(maxsplit=1)[0]) is None:
        pytest.skip(f"{shell} is not installed")
    arrived = tmp_path / "arrived"
    run = command_line(["sh", "-c", f"cat >{arrived}; echo 12"], script)
    lines = _submit_lines(f"{tmp_path}/mark", run, [])
    text = command_group(lines, "end")
    done = subprocess.run(shell.split(), input=text, capture_output=True, check=True)
    assert arrived.read_bytes() == script.encode()
    assert done.stdout == b"12\n\nend 0\n"
    assert (tmp_path / "mark").read_text("utf-8") == "\n0 12.\n"


def test_a_submit_is_one_way_there_and_back(lab: Lab) -> None:
    """Counted, as time tells little here: after the first, the client speaks once for each."""
    lab.submit()
    lab.proxy.arm()
    for _ in range(20):
        lab.submit()
    assert lab.proxy.turns <= 21  # now and then a word on how much may be under way


def test_cuts_at_any_byte_neither_double_nor_lose(lab: Lab) -> None:
    """Both ways, also while sbatch runs; what is measured first is how long a submit is."""
    lab.submit()
    long = lab.proxy.least(lab.submit)
    slow, chance, cut = lab.spool.folder / "slow", random.Random(7), 0
    answers, told = lab.spool.ids, list[str]()
    for number in range(2 * CUTS):
        if cut == CUTS:
            break
        slow.write_text(chance.choice(["0", "0", "0.1"]), "utf-8")
        way = chance.choice(["up", "up", "down"])
        before = lab.proxy.cuts
        lab.proxy.arm(way, chance.randint(1, long[way]))
        try:
            job_id = lab.submit(f"cut{number}")
        except SshError as error:  # it was cut while it connected anew: nothing was sent
            told.append(str(error))
            lab.proxy.arm()
            job_id = lab.submit(f"cut{number}")
        cut += lab.proxy.cuts > before
        lab.proxy.arm()
        assert job_id not in answers
        answers.append(job_id)
        assert lab.spool.script(job_id) == SCRIPT
    assert lab.spool.ids == sorted(answers, key=int)  # 0 double, 0 lost
    assert cut == CUTS
    assert all("does not speak SSH" in words or "cannot log in" in words for words in told)
    assert load_pending_submits() == []


def test_a_refusal_is_told_though_the_answer_was_cut_off(lab: Lab) -> None:
    lab.submit()
    lab.spool.program("sbatch", "#!/bin/sh\nsleep 1\necho 'sbatch: error: no way' >&2\nexit 1\n")
    lab.proxy.arm()
    with pytest.raises(Refused, match="no way"):
        lab.submit()
    lab.proxy.arm("down", lab.proxy.down // 2)
    with pytest.raises(Refused, match="no way"):
        lab.submit()
    assert load_pending_submits() == []


def test_what_nothing_tells_is_unknown_and_found_later(lab: Lab) -> None:
    """The mark is gone, and sbatch still runs: no second one is sent."""
    lab.submit()
    lab.backend._patience = 1.5
    lab.spool.program(
        "sbatch", "#!/bin/sh\nrm -rf @HOME@\n: >@JOBS@/../begun\n"
        "until [ -e @JOBS@/../told ]; do sleep 0.1; done\nid=900; mkdir @JOBS@/900\n"
        "printf '%s\\n' \"$@\" >@JOBS@/900/argv; cat >@JOBS@/900/script; echo 900\n"
        .replace("@HOME@", lab.backend._folder)
    )  # fmt: skip
    Thread(target=lab.cut_once, args=[lab.spool.folder / "begun"]).start()
    with pytest.raises(SentUnknown, match="slurmkit find"):
        lab.submit("slow")
    (lab.spool.folder / "told").touch()
    (sending,) = load_pending_submits()
    assert sending.name == "slow"
    lab.backend._patience = 30
    assert lab.backend.find(sending) == "900"
    assert load_pending_submit(sending.token) is None


@pytest.mark.parametrize(
    "end",
    ["echo thanks", "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1"],
)
def test_an_answer_that_says_nothing_is_looked_up_by_the_token(lab: Lab, end: str) -> None:
    """The job is in the queue: sbatch has only not said so."""
    lab.spool.program(
        "sbatch", "#!/bin/sh\nmkdir @JOBS@/900\nprintf '%s\\n' \"$@\" >@JOBS@/900/argv\n"
        f"cat >@JOBS@/900/script\n{end}\n"
    )  # fmt: skip
    assert lab.submit() == "900"
    assert load_pending_submits() == []
    lab.spool.program("sbatch", f"#!/bin/sh\ncat >/dev/null\n{end}\n")
    lab.backend._patience = 0.5
    with pytest.raises(SentUnknown, match="slurmkit find"):
        lab.submit()
    assert len(load_pending_submits()) == 1


def test_a_submit_that_never_came_never_will(lab: Lab) -> None:
    lab.submit()
    sending = lab.backend._new_sending(Submission(SCRIPT, ()))
    assert isinstance(lab.backend.find(sending), NeverRan)
    assert isinstance(lab.backend.find(sending), NeverRan)
    with pytest.raises(SshError, match="nothing was submitted"):
        lab.backend._sent(sending, ["sbatch"], SCRIPT)
    assert len(lab.spool.ids) == 1
