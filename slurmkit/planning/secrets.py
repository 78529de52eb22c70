"""What looks like a secret must not stand in a script: slurmctld and slurmdbd keep scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmkit.findings import Finding
from slurmkit.spec import JobSpec

_NAME = re.compile(
    r"(TOKEN|SECRET|PASSW|PASSPHRASE|API_?KEY|PRIVATE_KEY|CREDENTIAL)", re.IGNORECASE
)
# Well-known forms of tokens, so that nothing else is taken for one.
_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{40,}|glpat-[\w\-]{20}"
    r"|AKIA[0-9A-Z]{16}|xox[abps]-[\w\-]{20,}|sk-[A-Za-z0-9_\-]{32,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


def secrets(spec: JobSpec) -> Iterator[Finding]:
    """Name each place of `spec` that looks like a secret, never the secret itself."""
    for name, value in spec.environment.items():
        if (value and _NAME.search(name)) or _VALUE.search(value):
            yield _finding(
                f"environment: {name}",
                f"export {name} in your shell before you submit (Slurm hands your environment on),"
                " or let the job read it from a file that only you can read",
            )
    texts = {"the command": " ".join(spec.command), "the script": spec.script or ""}
    texts["--comment"] = spec.comment or ""
    for where, text in texts.items():
        if _VALUE.search(text):
            yield _finding(where, "let the job read it from a file that only you can read")


def _finding(where: str, advice: str) -> Finding:
    return Finding(
        severity="error",
        code="secret",
        message=f"{where} looks like a secret, and Slurm keeps and shows what is submitted;"
        f" {advice}",
        source="slurmkit",
        unsafe=True,
    )
