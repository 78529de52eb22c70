"""Every error slurmkit raises on purpose, and how the command line ends on it.

SlurmkitError                 exit 1: an operation failed
├── BadInput                  exit 2: what was asked for cannot be meant
│   └── BadConfig             a configuration file is wrong
├── Interrupted               exit 130: Ctrl-C, where there is more to say than that
├── MissingExtra              an optional part is not installed
├── BrokenPlugin              a plugin cannot be imported, or is not of its kind
├── SlurmError                Slurm said no, or nothing at all
│   ├── SlurmMissing          Slurm's commands are not on the PATH
│   ├── ControllerDown        slurmctld does not answer
│   ├── DatabaseDown          slurmdbd does not answer
│   ├── SlurmTimeout          a Slurm command took too long
│   ├── SshError              the login node of a cluster cannot be used over SSH
│   │   ├── HostKeyRefused    its host key is unknown, changed or revoked
│   │   ├── Unreachable       nothing answers there
│   │   └── ConnectionLost    the connection broke while a command ran
│   ├── SentUnknown           whether a job was submitted is not known
│   ├── NoSuchJob             no job of that id
│   └── Refused               any other refusal, in Slurm's words
│       └── JobOver           the job has already ended
├── NotOver                   a job has not ended, or not within the time to wait
├── LogUnavailable            a job's output cannot be read
├── CallError                 a function's call in a job gave no result
│   ├── CallDied              its process was killed, or ended itself
│   ├── PythonDiffers         the job's Python is another one than the caller's
│   ├── ResultLost            its job has ended and left no result of it
│   └── ResultRefused         the file with its result is not the user's alone
├── ImageError                a container's image cannot be imported, or not be trusted
├── LedgerError               the ledger's database cannot be used
│   └── ServiceError          the ledger's service cannot be asked, or not be trusted
│       └── NotVouched        munge does not vouch for who sent something
├── DirectoryError            LDAP cannot be reached or read
├── NotSent                   a notice was not taken by who was to deliver it
└── MaybeSent                 the line broke while a notice was handed over

A message says what was wrong, what is allowed and what to do, in one line. Errors of other
libraries are translated where they enter (`raise ... from`).
"""


class SlurmkitError(Exception):
    """Base of all errors that slurmkit raises on purpose."""

    exit_code = 1


class BadInput(SlurmkitError):
    """A value, option or file that cannot be meant."""

    exit_code = 2


class BadConfig(BadInput):
    """A configuration file that cannot be used."""


class Interrupted(SlurmkitError):
    """Ctrl-C ended it, and the message says what is left behind."""

    exit_code = 130


class MissingExtra(SlurmkitError):
    """A part of slurmkit whose optional dependencies are not installed."""


class BrokenPlugin(SlurmkitError):
    """A plugin that cannot be imported or lacks what its kind must have."""


class SlurmError(SlurmkitError):
    """Slurm refused or did not answer."""


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
    """The host key of a login node is not known, another than the one known, or revoked."""


class Unreachable(SshError):
    """Nothing answers where the login node should be."""


class ConnectionLost(SshError):
    """The connection broke while a command ran: it may have been done or not."""


class SentUnknown(SlurmError):
    """The line broke at a submit, and nothing tells for certain whether the job is there."""


class NoSuchJob(SlurmError):
    """Neither slurmctld nor slurmdbd knows the job id."""


class Refused(SlurmError):
    """Slurm refused the request; the message holds its words."""


class JobOver(Refused):
    """The job has already ended, so it cannot be cancelled, held or changed."""


class NotOver(SlurmkitError):
    """A job has not ended, or not within the time its watcher was willing to wait."""


class LogUnavailable(SlurmkitError):
    """A job's output file is unknown or cannot be read."""


class CallError(SlurmkitError):
    """A function's call in a job gave no result, or one that cannot be read here."""


class CallDied(CallError):
    """The process that made a call was killed, or ended itself."""


class PythonDiffers(CallError):
    """The Python of a job cannot read what that of its caller has pickled."""


class ResultLost(CallError):
    """A job has ended and left no result of a call."""


class ResultRefused(CallError):
    """A file with results is not its user's alone, so nothing in it is believed."""


class ImageError(SlurmkitError):
    """A container's image cannot be imported, or the file that is kept of it not be trusted."""


class LedgerError(SlurmkitError):
    """The ledger's database cannot be opened, read or written."""


class ServiceError(LedgerError):
    """The ledger's service cannot be asked, or its answer cannot be trusted."""


class NotVouched(ServiceError):
    """munge does not vouch for who sent a message: replayed, expired, forged or for another."""


class DirectoryError(SlurmkitError):
    """The LDAP directory cannot be reached, verified or read in full."""


class NotSent(SlurmkitError):
    """A mail or notice was not taken; sending it again cannot deliver it twice."""


class MaybeSent(SlurmkitError):
    """The line broke while a mail or notice was handed over: it may have been taken."""
