"""Every error slurmkit raises on purpose, and how the command line ends on it.

SlurmkitError                 exit 1: an operation failed
├── BadInput                  exit 2: a wrong option, value or file; also a ValueError
│   └── BadConfig             a configuration file is wrong
├── Interrupted               exit 130: Ctrl-C, with a message about what is left behind
├── MissingExtra              an optional part is not installed
├── BrokenPlugin              a plugin cannot be imported, or is not of its kind
├── SlurmError                Slurm refused or did not answer
│   ├── SlurmMissing          Slurm's commands are not on the PATH
│   ├── ControllerDown        slurmctld does not answer
│   ├── DatabaseDown          slurmdbd does not answer
│   ├── SlurmTimeout          a Slurm command took too long
│   ├── SshError              the login node of a cluster cannot be used over SSH
│   │   ├── HostKeyRefused    its host key is unknown, changed or revoked
│   │   ├── Unreachable       nothing answers there
│   │   └── ConnectionLost    the connection broke while a command ran
│   ├── SentUnknown           it is unknown whether a job was submitted
│   ├── NoSuchJob             no job of that id
│   └── Refused               any other refusal, with Slurm's message
│       └── JobOver           the job has already ended
├── NotOver                   a job has not ended (in time); also a TimeoutError
├── LogUnavailable            a job's output cannot be read
├── CallError                 a function called in a job returned no result
│   ├── CallDied              its process was killed, or exited
│   ├── PythonDiffers         the job's Python differs from the caller's
│   ├── ResultLost            the job has ended and left no result
│   └── ResultRefused         others could have written the result file
├── ImageError                a container image cannot be imported or trusted
├── LedgerError               the ledger's database cannot be used
│   └── ServiceError          the ledger's service cannot be reached or trusted
│       └── NotVouched        the sender of a message cannot be verified
├── DirectoryError            LDAP cannot be reached or read
├── NotSent                   the mail server or webhook did not accept a notice
└── MaybeSent                 the connection broke while a notice was sent

A message says in one line what was wrong, what is allowed and what to do. Errors of other
libraries are translated where they are caught (`raise ... from`).
"""


class SlurmkitError(Exception):
    """Base of all errors that slurmkit raises on purpose."""

    exit_code = 1


class BadInput(SlurmkitError, ValueError):
    """A wrong value, option or file."""

    exit_code = 2


class NotAllowed(BadInput):
    """Somebody asks for what only others may see or do."""


class BadConfig(BadInput):
    """A configuration file that cannot be used."""


class Interrupted(SlurmkitError):
    """Ctrl-C ended the command; the message says what is left behind."""

    exit_code = 130


class MissingExtra(SlurmkitError):
    """A part of slurmkit whose optional dependencies are not installed."""


class BrokenPlugin(SlurmkitError):
    """A plugin that cannot be imported or lacks a method of its kind's Protocol."""


class SlurmError(SlurmkitError):
    """Slurm refused or did not answer.

    Attributes:
        output: what the command had printed until then, where that is known.
    """

    output: str = ""


class SlurmMissing(SlurmError):
    """Slurm's client commands are not on the PATH."""


class ControllerDown(SlurmError):
    """slurmctld does not answer."""


class DatabaseDown(SlurmError):
    """slurmdbd does not answer."""


class SlurmTimeout(SlurmError):
    """A Slurm command was still running at its time limit."""


class SshError(SlurmError):
    """The login node of a cluster cannot be reached, logged in to or worked on over SSH."""


class HostKeyRefused(SshError):
    """The host key of a login node is unknown, differs from the known one, or is revoked."""


class Unreachable(SshError):
    """Nothing answers at the address of the login node."""


class ConnectionLost(SshError):
    """The connection broke while a command ran; it may have taken effect."""


class SentUnknown(SlurmError):
    """The answer to a submit was lost or cannot be read; it is unknown whether the job exists."""


class NoSuchJob(SlurmError):
    """Neither slurmctld nor slurmdbd knows the job id."""


class Refused(SlurmError):
    """Slurm refused the request; the error has Slurm's message."""


class JobOver(Refused):
    """The job has already ended, so it cannot be cancelled, held or changed."""


class NotOver(SlurmkitError, TimeoutError):
    """A job has not ended, or not within the time to wait."""


class LogUnavailable(SlurmkitError):
    """A job's output file is unknown or cannot be read."""


class CallError(SlurmkitError):
    """A function called in a job returned no result, or one that cannot be read here."""


class CallDied(CallError):
    """The process of a call was killed, or exited."""


class PythonDiffers(CallError):
    """The job's Python cannot unpickle what the caller's Python has pickled."""


class ResultLost(CallError):
    """A job has ended and left no result of a call."""


class ResultRefused(CallError):
    """A result file that others could have written, so it is not read."""


class ImageError(SlurmkitError):
    """A container image cannot be imported, or its imported file cannot be trusted."""


class LedgerError(SlurmkitError):
    """The ledger's database cannot be opened, read or written."""


class NoLedger(LedgerError):
    """There is no ledger yet."""


class ServiceError(LedgerError):
    """The ledger's service cannot be reached, or its answer cannot be trusted."""


class NotVouched(ServiceError):
    """A message is rejected: replayed, expired, forged or meant for another user."""


class DirectoryError(SlurmkitError):
    """The LDAP directory cannot be reached, verified or read in full."""


class NotSent(SlurmkitError):
    """A mail or notice was not accepted; sending it again cannot deliver it twice."""


class MaybeSent(SlurmkitError):
    """The connection broke while a mail or notice was sent; it may have been delivered."""
