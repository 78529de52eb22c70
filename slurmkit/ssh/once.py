"""Submit exactly once, over a line that may break at any byte.

Before sbatch runs, the shell on the login node makes a file named by the submit's token, which only
one can make; sbatch's answer goes into it. Who asks after a cut makes that file too: where that
works, the submit has not run and never will; where it does not, the file holds the answer, or will.
Where the file cannot tell, the token is looked for in the queue and in the accounting database.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from typing import TYPE_CHECKING

import msgspec

from slurmkit.backends.beside import ALONE, Beside
from slurmkit.backends.commands import CommandsBackend, command, job_id_in
from slurmkit.backends.tokens import SIGN, in_queue, look_up, new_token
from slurmkit.errors import (
    ConnectionLost,
    HostKeyRefused,
    SentUnknown,
    SlurmError,
    SlurmTimeout,
    SshError,
)
from slurmkit.slurm import translate
from slurmkit.ssh.remoteshell import call
from slurmkit.ssh.sending import Sending, done, note

if TYPE_CHECKING:
    from slurmkit.planner import Submission
    from slurmkit.ssh.border import SshSlurm

_TIMES = 3  # a submit that surely never ran is sent again
_PATIENCE = 60.0  # seconds for a new connection, and for an sbatch that runs
_UNMARKED = "slurmkit: the submit could not be marked"
_ANSWER = re.compile(r"(?P<said>.*)\n(?P<code>\d+) (?P<output>.*)\.\n", re.DOTALL)
_NEVER = "never"
_KEPT = 32  # marks that are left on the login node before they are removed together
_OLD = 7  # days


class Gone(msgspec.Struct, frozen=True):
    """A submit that surely never ran, and never will."""


class OnceBackend(CommandsBackend):
    """The commands backend over SSH; see `slurmkit.plugins.Backend`.

    Args:
        slurm: the border.
        patience: seconds to find out what became of a submit whose answer was cut off.
    """

    def __init__(self, slurm: SshSlurm, patience: float = _PATIENCE) -> None:
        super().__init__(slurm)
        self._ssh = slurm
        self._patience = patience
        self._folder = ""
        self._answered: list[str] = []

    def submit(self, submission: Submission, beside: Beside = ALONE) -> str:
        """See `Backend.submit`.

        Raises:
            SentUnknown: when the line broke and nothing tells whether the job is there.
        """
        for _ in range(_TIMES):
            sending = self._begun(submission)
            argv = command(submission, _marked(beside, sending.token))
            job_id = self._sent(sending, argv, submission.script)
            if isinstance(job_id, str):
                return job_id
        raise SshError(f"the line broke {_TIMES} times before the job was there; nothing was sent")

    def find(self, sending: Sending) -> str | Gone:
        """What became of a submit: the id of its job, or that there is none and never will be.

        Raises:
            Refused: when sbatch refused it.
            SentUnknown: when nothing tells.
        """
        try:
            found = self._resolved(sending)
        except SentUnknown:
            raise
        except SlurmError:  # sbatch refused it
            done(sending)
            raise
        done(sending)
        return found

    def _begun(self, submission: Submission) -> Sending:
        token = new_token()
        mark = f"{self._marks()}/{token}"
        name = dict(submission.options).get("job-name", "")
        return Sending(token, self._ssh.name, mark, name, int(time.time()))

    def _sent(self, sending: Sending, argv: list[str], script: str) -> str | Gone:
        note(sending)
        try:
            self._ssh.count()
            lines = _submitting(sending.mark, call(argv, script), self._answered)
            said = self._ssh.told(argv, lines, timeout=60)
        except (ConnectionLost, SlurmTimeout):
            return self.find(sending)
        except KeyboardInterrupt:
            raise _unknown(sending, "interrupted while it was sent") from None
        except SlurmError as error:
            done(sending)
            if _UNMARKED in str(error):
                return self._unmarked(error)
            raise
        done(sending)
        self._note_answered(sending)
        return job_id_in(said)

    def _note_answered(self, sending: Sending) -> None:
        self._answered = [] if len(self._answered) >= _KEPT else self._answered
        self._answered.append(sending.mark)

    def _unmarked(self, error: SlurmError) -> Gone:
        """The folder of the marks may have been cleared up; without room there is no submit."""
        before, self._folder = self._folder, ""
        if self._ssh.told(
            ["test"], [f"test -d {shlex.quote(before)} && echo there || :"], timeout=60
        ):
            raise SshError(
                f"nothing was submitted: {before} on the login node cannot be written, where a"
                " submit is marked so that it is never done twice; is your quota used up?"
            ) from error
        return Gone()

    def _marks(self) -> str:
        """The folder for marks, of a name that is nowhere else: so it is known to be the same."""
        if not self._folder:
            above = f"{self._ssh.node.home}/.local/state/slurmkit/sent"
            folder, quoted = f"{above}/{secrets.token_hex(8)}", shlex.quote(above)
            lines = [
                f"(umask 077; mkdir -p {quoted} && mkdir {shlex.quote(folder)}) || exit 1",
                f"find {quoted} -mindepth 1 -maxdepth 1 -mtime +{_OLD} -exec rm -rf {{}} + || :",
            ]
            self._ssh.told(["mkdir"], lines, timeout=60)
            self._folder = folder
        return self._folder

    def _resolved(self, sending: Sending) -> str | Gone:
        """Ask the mark, while there is patience; then Slurm."""
        end = time.monotonic() + self._patience
        trouble, pause = "", 0.05
        while time.monotonic() < end:
            try:
                found = self._by_mark(sending)
            except (HostKeyRefused, KeyboardInterrupt) as error:
                raise _unknown(sending, str(error) or "interrupted") from error
            except (SshError, SlurmTimeout) as error:
                trouble, found = str(error), None
            if found is not None:
                return found
            time.sleep(pause)
            pause = min(2.0, pause * 2)
        return self._by_slurm(sending, trouble)

    def _by_mark(self, sending: Sending) -> str | Gone | None:
        """By the file on the login node; None while sbatch runs, or where the file tells nothing.

        Raises:
            Refused: when sbatch refused it.
            SshError: when the login node cannot be asked.
        """
        said = self._ssh.told(["sbatch"], _asking(sending.mark), timeout=60)
        if said == f"taken\n{_NEVER}\n":
            return Gone()
        answer = _ANSWER.fullmatch(said.removeprefix("taken\n")) if said != "gone\n" else None
        if answer is None:
            return in_queue(self._ssh, sending.token)
        if answer["code"] != "0":
            raise translate("sbatch", answer["said"] or answer["output"], int(answer["code"]))
        return job_id_in(answer["output"])

    def _by_slurm(self, sending: Sending, trouble: str) -> str:
        try:
            user = self._ssh.node.user
            found = look_up(self._ssh, sending.token, user, sending.since)
        except SlurmError as error:
            raise _unknown(sending, trouble or str(error)) from error
        if found is None:
            raise _unknown(sending, trouble or "its sbatch has not answered")
        return found


def _marked(beside: Beside, token: str) -> Beside:
    comment = " ".join(filter(None, [beside.comment, f"{SIGN}{token}"]))
    return msgspec.structs.replace(beside, comment=comment)


def _submitting(mark: str, run: str, old: list[str]) -> list[str]:
    """Lines of sh: who makes the mark may run sbatch, and writes its answer there."""
    at = shlex.quote(mark)
    clear = [f"rm -f {' '.join(map(shlex.quote, old))}"] if len(old) >= _KEPT else []
    return [
        "trap '' HUP PIPE",  # what has begun is not to end with the line
        "set -C; umask 077",
        f"true 2>/dev/null >{at} || {{ echo {shlex.quote(_UNMARKED)} >&2; exit 91; }}",
        "set +C",
        f"slurmkit_out=$(exec 2>>{at}\n{run}\n)",
        "slurmkit_code=$?",
        f"[ ! -s {at} ] || cat {at} >&2",
        f'printf \'\\n%s %s.\\n\' "$slurmkit_code" "$slurmkit_out" >>{at}',
        "printf '%s\\n' \"$slurmkit_out\"",
        *clear,
        'exit "$slurmkit_code"',
    ]


def _asking(mark: str) -> list[str]:
    at = shlex.quote(mark)
    return [
        "set -C; umask 077",
        "trap '' HUP PIPE",
        f"if true 2>/dev/null >{at}; then echo {_NEVER} >>{at}; echo taken; cat {at}",
        f"elif [ -f {at} ]; then echo taken; cat {at}",
        "else echo gone; fi",
    ]


def _unknown(sending: Sending, why: str) -> SentUnknown:
    return SentUnknown(
        f"whether the job {sending.name or 'that was sent'} is there is not known ({why}); ask"
        f" again with: slurmkit find {sending.token}"
    )
