"""The submit of a job exactly once over an SSH connection that may break at any byte.

Before sbatch runs, the shell on the login node creates a mark file, named by the token of the
submit. Only one process can create it. sbatch's answer is written into it. After a lost connection
we try to create the same file. If that works, sbatch has not run and never will. If not, the file
holds the answer, or soon will. If the file cannot tell, the token is searched for in the queue and
in the accounting database. A submit without an answer is recorded on this machine, so that
`slurmkit find` can find its job later.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.config.paths import state_folder, write_private_file
from slurmkit.errors import (
    BadInput,
    ConnectionLost,
    HostKeyRefused,
    SentUnknown,
    SlurmError,
    SlurmkitError,
    SlurmTimeout,
    SshError,
)
from slurmkit.jobs.backends.commands import (
    NO_OVERRIDES,
    CommandsBackend,
    SubmitOverrides,
    is_answer_lost,
    parse_job_id,
    sbatch_command,
)
from slurmkit.jobs.backends.submit_token import (
    TOKEN_PREFIX,
    find_by_token,
    find_in_queue,
    new_token,
)
from slurmkit.slurm.commands import slurm_error
from slurmkit.slurm.ssh.login import SshSlurmCommands, ssh_slurm_of
from slurmkit.slurm.ssh.shell import command_line

if TYPE_CHECKING:
    from slurmkit.spec.submission import Submission

_TIMES = 3  # tries of a submit that has certainly not run
_PATIENCE = 60.0  # seconds for a new connection, and for a running sbatch to end
_UNMARKED = "slurmkit: the submit could not be marked"
_ANSWER = re.compile(r"(?P<errors>.*)\n(?P<code>\d+) (?P<output>.*)\.\n", re.DOTALL)
_NEVER = "never"
_MARK_BATCH = 32  # marks on the login node before they are removed together
_OLD = 7  # days after which marks of an earlier process are removed
_FOLDER = "sending"


class NeverRan(msgspec.Struct, frozen=True):
    """A submit that has not run and never will."""


class OnceBackend(CommandsBackend):
    """The commands backend over SSH; see `slurmkit.jobs.backends.protocol.Backend`.

    Args:
        slurm: runs the commands.
        patience: seconds to find out the result of a submit whose answer was lost.
    """

    def __init__(self, slurm: SshSlurmCommands, patience: float = _PATIENCE) -> None:
        super().__init__(slurm)
        self._ssh = slurm
        self._patience = patience
        self._folder = ""
        self._answered: list[str] = []

    def submit(self, submission: Submission, overrides: SubmitOverrides = NO_OVERRIDES) -> str:
        """Submit one batch job, never twice, even if the connection breaks.

        Raises:
            SentUnknown: when the answer was lost and nothing tells whether the job exists.
        """
        for _ in range(_TIMES):
            sending = self._new_sending(submission)
            argv = sbatch_command(submission, _with_token(overrides, sending.token))
            job_id = self._sent(sending, argv, submission.script)
            if isinstance(job_id, str):
                return job_id
        raise SshError(
            f"the connection broke {_TIMES} times before the submit; nothing was sent; try again"
        )

    def find(self, sending: PendingSubmit) -> str | NeverRan:
        """Find the job of an earlier submit; `NeverRan` if it has not run and never will.

        Raises:
            Refused: when sbatch refused it.
            SentUnknown: when nothing tells.
        """
        try:
            job_id = self._resolve(sending)
        except SentUnknown:
            raise
        except SlurmError:  # sbatch refused it
            remove_pending_submit(sending)
            raise
        remove_pending_submit(sending)
        return job_id

    def _new_sending(self, submission: Submission) -> PendingSubmit:
        token = new_token()
        mark = f"{self._marks()}/{token}"
        name = dict(submission.options).get("job-name", "")
        return PendingSubmit(token, self._ssh.name, mark, name, int(time.time()))

    def _sent(self, sending: PendingSubmit, argv: list[str], script: str) -> str | NeverRan:
        save_pending_submit(sending)
        try:
            self._ssh.count()
            lines = _submit_lines(sending.mark, command_line(argv, script), self._answered)
            output = self._ssh.run_lines(argv, lines, timeout=60)
            job_id = parse_job_id(output)
        except ConnectionLost:
            return self.find(sending)
        except KeyboardInterrupt:
            raise _unknown(sending, "interrupted while it was sent") from None
        except SlurmError as error:
            if is_answer_lost(error):
                return self.find(sending)
            remove_pending_submit(sending)
            if _UNMARKED in str(error):
                return self._unmarked(error)
            raise
        remove_pending_submit(sending)
        self._note_answered(sending)
        return job_id

    def _note_answered(self, sending: PendingSubmit) -> None:
        """Remember a mark that is no longer needed; `_MARK_BATCH` of them are removed together."""
        self._answered = [] if len(self._answered) >= _MARK_BATCH else self._answered
        self._answered.append(sending.mark)

    def _unmarked(self, error: SlurmError) -> NeverRan:
        """Handle a mark that could not be created: somebody removed the folder, or a full disk."""
        before, self._folder = self._folder, ""
        if self._ssh.run_lines(
            ["test"], [f"test -d {shlex.quote(before)} && echo there || :"], timeout=60
        ):
            raise SshError(
                f"nothing was submitted: {before} on the login node cannot be written; slurmkit"
                " notes each submit there, so that none is done twice; check your quota"
            ) from error
        return NeverRan()

    def _marks(self) -> str:
        """Return the folder of the marks; made once, with a random name that nothing else has."""
        if not self._folder:
            above = f"{self._ssh.node.home}/.local/state/slurmkit/sent"
            folder, quoted = f"{above}/{secrets.token_hex(8)}", shlex.quote(above)
            lines = [
                f"(umask 077; mkdir -p {quoted} && mkdir {shlex.quote(folder)}) || exit 1",
                f"find {quoted} -mindepth 1 -maxdepth 1 -mtime +{_OLD} -exec rm -rf {{}} + || :",
            ]
            self._ssh.run_lines(["mkdir"], lines, timeout=60)
            self._folder = folder
        return self._folder

    def _resolve(self, sending: PendingSubmit) -> str | NeverRan:
        """Read the mark until the patience ends; then search in Slurm."""
        end = time.monotonic() + self._patience
        trouble, pause = "", 0.05
        while time.monotonic() < end:
            try:
                job_id = self._read_mark(sending)
            except (HostKeyRefused, KeyboardInterrupt) as error:
                raise _unknown(sending, str(error) or "interrupted") from error
            except (SshError, SlurmTimeout) as error:
                trouble, job_id = str(error), None
            if job_id is not None:
                return job_id
            time.sleep(pause)
            pause = min(2.0, pause * 2)
        return self._search_slurm(sending, trouble)

    def _read_mark(self, sending: PendingSubmit) -> str | NeverRan | None:
        """Read the mark file on the login node; None while sbatch runs or if the file is useless.

        Raises:
            Refused: when sbatch refused the job.
            SshError: when the login node cannot be reached.
        """
        output = self._ssh.run_lines(["test"], _mark_lines(sending.mark), timeout=60)
        if output == f"taken\n{_NEVER}\n":
            return NeverRan()
        answer = _ANSWER.fullmatch(output.removeprefix("taken\n")) if output != "gone\n" else None
        if answer is None:
            return find_in_queue(self._ssh, sending.token)
        try:
            return _job_id_of_answer(answer)
        except SlurmError as error:
            if not is_answer_lost(error):
                raise
            return find_in_queue(self._ssh, sending.token)

    def _search_slurm(self, sending: PendingSubmit, trouble: str) -> str:
        """Search the queue and the database for a job with the token."""
        try:
            user = self._ssh.node.user
            job_id = find_by_token(self._ssh, sending.token, user, sending.since)
        except SlurmError as error:
            raise _unknown(sending, trouble or str(error)) from error
        if job_id is None:
            raise _unknown(sending, trouble or "its sbatch has not answered")
        return job_id


def _with_token(overrides: SubmitOverrides, token: str) -> SubmitOverrides:
    """Add the token to the job's comment."""
    comment = " ".join(filter(None, [overrides.comment, f"{TOKEN_PREFIX}{token}"]))
    return msgspec.structs.replace(overrides, comment=comment)


def _submit_lines(mark: str, run: str, old: list[str]) -> list[str]:
    """Return lines of sh that create the mark, run sbatch, and write its answer to the mark."""
    at = shlex.quote(mark)
    clear = [f"rm -f {' '.join(map(shlex.quote, old))}"] if len(old) >= _MARK_BATCH else []
    return [
        "trap '' HUP PIPE",  # go on if the connection breaks
        "set -C; umask 077",
        f"true 2>/dev/null >{at} || {{ echo {shlex.quote(_UNMARKED)} >&2; exit 91; }}",
        "set +C",
        # A function: within $( ) bash loses control characters of a here document.
        f"slurmkit_submit() {{\n{run}\n}}",
        f"slurmkit_out=$(exec 2>>{at}; slurmkit_submit)",
        "slurmkit_code=$?",
        f"[ ! -s {at} ] || cat {at} >&2",
        f'printf \'\\n%s %s.\\n\' "$slurmkit_code" "$slurmkit_out" >>{at}',
        "printf '%s\\n' \"$slurmkit_out\"",
        *clear,
        'exit "$slurmkit_code"',
    ]


def _mark_lines(mark: str) -> list[str]:
    """Return lines of sh that create the mark, or print what is in it."""
    at = shlex.quote(mark)
    return [
        "set -C; umask 077",
        "trap '' HUP PIPE",
        f"if true 2>/dev/null >{at}; then echo {_NEVER} >>{at}; echo taken; cat {at}",
        f"elif [ -f {at} ]; then echo taken; cat {at}",
        "else echo gone; fi",
    ]


def _job_id_of_answer(answer: re.Match[str]) -> str:
    """Parse sbatch's answer in a mark; raises its error."""
    if answer["code"] != "0":
        raise slurm_error("sbatch", answer["errors"] or answer["output"], int(answer["code"]))
    return parse_job_id(answer["output"])


def _unknown(sending: PendingSubmit, why: str) -> SentUnknown:
    return SentUnknown(
        f"it is unknown whether the job {sending.name or 'that was sent'} exists ({why}); look for"
        f" it with: slurmkit find {sending.token}"
    )


class PendingSubmit(msgspec.Struct, frozen=True):
    """A submit without an answer so far.

    Attributes:
        token: part of the job's comment.
        cluster: name of the cluster in the configuration.
        mark: mark file on the login node (see `slurmkit.jobs.backends.ssh`).
        name: name of the job.
        since: epoch seconds at which it was sent.
    """

    token: str
    cluster: str
    mark: str
    name: str
    since: int


def save_pending_submit(sending: PendingSubmit) -> None:
    """Write the record of a submit.

    Raises:
        SlurmkitError: when it cannot be written; then the job must not be sent.
    """
    path = _path(sending.token)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private_file(path, msgspec.json.encode(sending))
    except OSError as error:
        raise SlurmkitError(
            f"nothing was submitted: cannot write to {path.parent} ({error.strerror}); slurmkit"
            " notes each submit there, to find the job again if the connection breaks"
        ) from error


def remove_pending_submit(sending: PendingSubmit) -> None:
    """Remove the record of a submit that has its answer."""
    _path(sending.token).unlink(missing_ok=True)


def load_pending_submit(token: str) -> PendingSubmit | None:
    """Load the record of a token; None when there is none.

    Raises:
        BadInput: for a text that is no token.
    """
    if not token.isalnum():
        raise BadInput(
            f"{token!r} is not a token; a token has letters and digits, as in slurmkit:TOKEN"
        )
    try:
        return msgspec.json.decode(_path(token).read_bytes(), type=PendingSubmit)
    except (OSError, msgspec.DecodeError):
        return None


def load_pending_submits() -> list[PendingSubmit]:
    """Load the records of all submits without an answer, oldest first."""
    names = [path.stem for path in state_folder(_FOLDER).glob("*.json")]
    sendings = [
        sending for name in names if name.isalnum() and (sending := load_pending_submit(name))
    ]
    return sorted(sendings, key=lambda sending: sending.since)


def _path(token: str) -> Path:
    return state_folder(_FOLDER) / f"{token}.json"


def ssh_slurm_and_backend(name: str) -> tuple[SshSlurmCommands, OnceBackend]:
    """Return the Slurm commands and the backend of a configured cluster, without connecting.

    Raises:
        BadInput: when there is none of that name.
    """
    slurm = ssh_slurm_of(name)
    return slurm, OnceBackend(slurm)
