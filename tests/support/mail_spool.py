"""A spool of mails about jobs, filled as slurmctld fills it through `slurmkit-mail`."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "plugins" / "slurmkit_plugins" / "slurm" / "slurmkit-mail"
_NUMBERS = count(1)


def job_environment(job_id: int, kind: str, **other: object) -> dict[str, str]:
    """The environment that slurmctld gives for an event, by its names without `SLURM_`."""
    facts = {
        "JOB_ID": job_id, "JOB_NAME": "train", "JOB_USER": "alice", "JOB_UID": 10011,
        "JOB_ACCOUNT": "vision", "JOB_PARTITION": "gpu", "CLUSTER_NAME": "lab",
        "JOB_STATE": "COMPLETED", "JOB_MAIL_TYPE": kind, "JOB_NODELIST": "c1",
        "JOB_RESTART_COUNT": 0, "JOB_RUN_TIME": "00:10:00",
    } | other  # fmt: skip
    return {f"SLURM_{name}": str(value) for name, value in facts.items()}


def subject_of(environment: dict[str, str], *, whole_array: bool = False) -> str:
    """The subject that slurmctld writes (src/slurmctld/agent.c)."""
    name, kind = environment["SLURM_JOB_NAME"], environment["SLURM_JOB_MAIL_TYPE"]
    job, array = environment["SLURM_JOB_ID"], environment.get("SLURM_ARRAY_JOB_ID")
    if whole_array:
        return f"Slurm Array Summary Job_id={array}_* ({job}) Name={name} {kind}"
    return f"Slurm Job_id={job} Name={name} {kind}, Run time 00:10:00"


def install_script(folder: Path, **settings: object) -> Path:
    """Install slurmkit-mail with this Python, and its settings."""
    folder.mkdir(exist_ok=True)
    lines = SCRIPT.read_text("utf-8").splitlines(keepends=True)
    script = folder / "slurmkit-mail"
    script.write_text(f"#!{Path(sys.executable).resolve()} -IS\n{''.join(lines[1:])}", "utf-8")
    script.chmod(0o755)
    words = "".join(f"{name}={value}\n" for name, value in settings.items())
    (folder / "slurmkit_mail.conf").write_text(f"# settings\n{words}", "utf-8")
    return script


def call_script(
    script: Path, environment: dict[str, str], address: str = "alice", *, whole_array: bool = False
) -> subprocess.CompletedProcess[str]:
    """Call slurmkit-mail as slurmctld does: with nothing else in the environment."""
    argv = [script, "-s", subject_of(environment, whole_array=whole_array), address]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def write_event(
    spool: Path,
    at: int,
    environment: dict[str, str],
    address: str = "alice",
    *,
    whole_array: bool = False,
) -> Path:
    """Write an event without a process, for thousands of them and for other times."""
    fields = {"SUBJECT": subject_of(environment, whole_array=whole_array), "ADDRESS": address}
    fields |= {"AT": str(at)}
    fields |= {name.removeprefix("SLURM_"): value for name, value in environment.items()}
    path = spool / f"{at * 10**9}-{next(_NUMBERS)}.event"
    content = "".join(f"{name}={value}\0" for name, value in fields.items())
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    return path
