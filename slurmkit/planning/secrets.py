"""What looks like a secret must not stand in a script: slurmctld and slurmdbd keep scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from slurmkit.findings import Finding
from slurmkit.options import option_values
from slurmkit.spec import JobSpec

# A name that ends so is one of a secret: HF_TOKEN_2 and PGPASSWORD, but neither MAX_TOKENS nor
# TOKENIZERS_PARALLELISM nor HF_TOKEN_PATH.
_PASSWORD = re.compile(r"((^|_)(PASS|PASSPHRASE|PWD)|PASSWORD|PASSWD)(_?\d+)?$", re.IGNORECASE)
_NAME = re.compile(
    r"((^|_)(TOKEN|SECRET|CREDENTIALS?)|_PAT|_KEY|API_?KEY)(_?\d+)?$|" + _PASSWORD.pattern,
    re.IGNORECASE,
)
# A password may look like anything, and a token does not look so.
_NO_SECRET = re.compile(r"/[\w./~+\-]*\.\w+|true|false|yes|no|on|off|none|\d{1,6}", re.IGNORECASE)
_READS = "slurmkit_forget() {"  # see slurmkit.secretfiles
_NOT_SECRETS = ("PWD", "OLDPWD")
# Well-known forms of tokens, so that nothing else is taken for one.
_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{40,}|glpat-[\w\-]{20}"
    r"|AKIA[0-9A-Z]{16}|xox[abps]-[\w\-]{20,}|sk-[A-Za-z0-9]{40,}"
    r"|sk-(proj|ant|svcacct|admin|or)-[\w\-]{32,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


def secrets(spec: JobSpec) -> Iterator[Finding]:
    """Name each place of `spec` that looks like a secret, never the secret itself."""
    if kept := secret_variables(spec):
        message = f"{', '.join(kept)} travels in a file that only you can read, not in the script"
        yield Finding(severity="note", code="secret-file", message=message, source="slurmkit")
    elif _READS in (spec.script or ""):
        message = (
            "the script waits for secrets that were another job's; take out the lines about"
            " slurmkit_file and slurmkit_forget, and give what they had anew: --env HF_TOKEN"
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
    """Those of a job's environment that look like secrets: they travel in a file of their own."""
    return {n: value for n, value in spec.environment.items() if _is_secret(n, value)}


def masked(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables as they may be shown: `***` for what looks like a secret."""
    return {n: "***" if _is_secret(n, value) else value for n, value in environment.items()}


def _is_secret(name: str, value: str) -> bool:
    """By its form, or its name unless it is plainly something else: a file's path, a number."""
    if _VALUE.search(value):
        return True
    if not value or name in _NOT_SECRETS or not _NAME.search(name):
        return False
    return _PASSWORD.search(name) is not None or not _NO_SECRET.fullmatch(value)


def _finding(where: str) -> Finding:
    return Finding(
        severity="error",
        code="secret",
        message=f"{where} looks like a secret, and Slurm keeps and shows what is submitted;"
        " give it as a variable that you export, --env HF_TOKEN, or let the job read it from a"
        " file of yours",
        source="slurmkit",
        unsafe=True,
    )
