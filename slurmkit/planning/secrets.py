"""Secrets in a spec: they must not be in a script, which slurmctld and slurmdbd keep."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from slurmkit.config.paths import state_folder
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.sbatch_options import option_values

SECRETS_FOLDER = "secrets"  # of the state folder; one file for each job
_COMMENT = ": in a file that you alone can read"


def secret_lines(names: Iterable[str], *, once: bool = False) -> tuple[str, ...]:
    """Return POSIX shell lines that read a job's secrets.

    Args:
        names: names of the secrets.
        once: remove the file at once, for a job that is never requeued; otherwise the lines define
            a function that removes it when the job has ended well.
    """
    comment = f"# {', '.join(names)}{_COMMENT}, named once the job is sent."
    return (
        comment,
        f"slurmkit_file={shlex.quote(str(state_folder(SECRETS_FOLDER)))}",
        *_READ_LINES,
        *(_REMOVE_LINES if once else _FORGET_FUNCTION),
    )


_READ_LINES = tuple(
    """
slurmkit_file=$slurmkit_file/$SLURM_CLUSTER_NAME/${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} slurmkit_try=0
until [ -r "$slurmkit_file" ]; do
  slurmkit_try=$((slurmkit_try + 1))
  if [ "$slurmkit_try" -gt 60 ]; then
    echo "slurmkit: $slurmkit_file is not there (any more): submit the job again, with slurmkit" >&2
    exit 1
  fi
  sleep 1
  ls "${slurmkit_file%/*}" >/dev/null 2>&1 || :  # NFS looks again
done
. "$slurmkit_file"
""".strip().split("\n")
)
_REMOVE_LINES = ('rm -f "$slurmkit_file" # no other run needs it',)
_FORGET_FUNCTION = tuple(
    """
# Its end; but what failed or is being requeued, and other tasks of an array, may need them again.
slurmkit_forget() {
  slurmkit_code=$?
  if [ "$slurmkit_code" = 0 ] && [ -z "${SLURM_ARRAY_JOB_ID:-}" ] &&
    [ "$(squeue -h -j "$SLURM_JOB_ID" -t RUNNING -o %i 2>/dev/null)" ]; then
    rm -f "$slurmkit_file"
  fi
}
""".strip().split("\n")
)
FORGET_LINES = ("slurmkit_forget", 'exit "$slurmkit_code"')
FORGET_TRAP = ("trap slurmkit_forget EXIT",)
_READ_PATTERN = re.compile(
    rf"^# (?P<names>[\w, ]+){_COMMENT}[^\n]*\n.*?"
    rf"(^{re.escape(_REMOVE_LINES[0])}\n|"
    r"^slurmkit_forget\(\) \{\n.*?^\}\n(trap slurmkit_forget EXIT\n)?)",
    re.MULTILINE | re.DOTALL,
)
_FORGET_PATTERN = re.compile(
    r'^(slurmkit_code=\$\?\n)?slurmkit_forget\nexit "\$slurmkit_code"\n*\Z', re.M
)


def without_secret_lines(script: str) -> tuple[str, str]:
    """Return a sent script without the lines about secrets, and the secrets' names.

    The secrets' file belongs to that job only; a second job would wait for it in vain.
    """
    match = _READ_PATTERN.search(script)
    if match is None:
        return script, ""
    return _FORGET_PATTERN.sub("", script[: match.start()] + script[match.end() :]), match["names"]


# Endings of names of secrets: HF_TOKEN_2 and PGPASSWORD, but neither MAX_TOKENS nor
# TOKENIZERS_PARALLELISM nor HF_TOKEN_PATH.
_PASSWORD = re.compile(r"((^|_)(PASS|PASSPHRASE|PWD)|PASSWORD|PASSWD)(_?\d+)?$", re.IGNORECASE)
_NAME = re.compile(
    r"((^|_)(TOKEN|SECRET|CREDENTIALS?)|_PAT|_KEY|API_?KEY)(_?\d+)?$|" + _PASSWORD.pattern,
    re.IGNORECASE,
)
# Values that no token has; a password may have any value.
_NO_SECRET = re.compile(r"/[\w./~+\-]*\.\w+|true|false|yes|no|on|off|none|\d{1,6}", re.IGNORECASE)
_READS = '. "$slurmkit_file"'  # see slurmkit.cluster.send
_NOT_SECRETS = ("PWD", "OLDPWD")
# Well-known forms of tokens only, so that other values do not match.
_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{40,}|glpat-[\w\-]{20}"
    r"|AKIA[0-9A-Z]{16}|xox[abps]-[\w\-]{20,}|sk-[A-Za-z0-9]{40,}"
    r"|sk-(proj|ant|svcacct|admin|or)-[\w\-]{32,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


def check_secrets(spec: JobSpec) -> Iterator[Finding]:
    """Name each place of `spec` that looks like a secret, never the secret itself."""
    if names := secret_variables(spec):
        message = f"{', '.join(names)} travels in a file that only you can read, not in the script"
        yield Finding(severity="note", code="secret-file", message=message, source="slurmkit")
    elif _READS in (spec.script or ""):
        message = (
            "the script waits for the secrets of another job; remove the lines with slurmkit_file"
            " and slurmkit_forget, and give the secrets again, e.g. --env HF_TOKEN"
        )
        yield Finding(severity="error", code="secret-gone", message=message, source="slurmkit")
    texts = {"the command": " ".join(spec.command), "the script": spec.script or ""}
    texts |= {f"--{name}": value for name, value in option_values(spec).items()}
    sweep = spec.sweep
    for at, name in enumerate(sweep.names if sweep else ()):
        if sweep and any(_is_secret(name, point[at]) for point in sweep.points):
            yield _finding(f"a value of the sweep's {name}")
    for where, text in texts.items():
        if _VALUE.search(text):
            yield _finding(where)


def secret_variables(spec: JobSpec) -> dict[str, str]:
    """Return a job's variables that look like secrets; they travel in a private file."""
    return {n: value for n, value in spec.environment.items() if _is_secret(n, value)}


def mask_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for display: `***` for each that looks like a secret."""
    return {n: "***" if _is_secret(n, value) else value for n, value in environment.items()}


def _is_secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by its value or its name.

    A name does not count if the value is plainly something else: the path of a file, a number.
    """
    if _VALUE.search(value):
        return True
    if not value or name in _NOT_SECRETS or not _NAME.search(name):
        return False
    return _PASSWORD.search(name) is not None or not _NO_SECRET.fullmatch(value)


def _finding(where: str) -> Finding:
    return Finding(
        severity="error",
        code="secret",
        message=f"{where} looks like a secret, and Slurm stores and shows every submitted job;"
        " export the secret and give its name, e.g. --env HF_TOKEN, or let the job read it from a"
        " file of your own",
        source="slurmkit",
        unsafe=True,
    )
