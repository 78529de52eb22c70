"""What the spawner does as the person themselves: look at profiles, submit a server, cancel it.

JupyterHub runs this module in a process of its own, with the person's rights. It reads one request
from standard input and writes one answer to standard output, both as JSON.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import load_section
from slurmkit.config.paths import describe_write_error, state_folder
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.interactive.web_servers import JUPYTER, ServerSection
from slurmkit.planning.planner import plan, with_past_waits
from slurmkit.planning.request import SiteState
from slurmkit.spec.jobfile import parse_job_table
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.state.model import Capabilities, Standing
from slurmkit_plugins.jupyterhub import in_job

JobTable = dict[str, object]
"""A job with the keys of a job file."""
LOG_FOLDER = "jupyterhub"
_WALL_TIME = "4:00:00"


class Offer(msgspec.Struct, frozen=True, tag=True):
    """Asks what the person may start.

    Attributes:
        profiles: jobs by name; empty for one per GPU type of the cluster.
    """

    profiles: dict[str, JobTable]


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Submits a server.

    Attributes:
        profiles: as of `Offer`.
        profile: name of one; empty for the first.
        time: time limit as sbatch takes it; empty for the profile's.
        account: empty for the person's default account.
        environment: variables of the server.
        command: argv of the server.
        name: name of the job.
    """

    profiles: dict[str, JobTable]
    profile: str
    time: str
    account: str
    environment: dict[str, str]
    command: tuple[str, ...]
    name: str


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Cancels the job of a server."""

    job_id: str


class AskEnd(msgspec.Struct, frozen=True, tag=True):
    """Asks how a job ended."""

    job_id: str


class Choice(msgspec.Struct, frozen=True):
    """A profile, as it is for the person now.

    Attributes:
        name: its name.
        time: its time limit; empty without one.
        refusals: why the person cannot start it; empty if they can.
        start: epoch seconds of Slurm's estimate; None if unknown.
        waited: how long such jobs waited; empty if unknown.
    """

    name: str
    time: str = ""
    refusals: tuple[str, ...] = ()
    start: int | None = None
    waited: str = ""


class Offered(msgspec.Struct, frozen=True, tag=True):
    """Answers `Offer`.

    Attributes:
        choices: the profiles.
        accounts: the person's accounts, the default one first.
    """

    choices: tuple[Choice, ...]
    accounts: tuple[str, ...]


class Submitted(msgspec.Struct, frozen=True, tag=True):
    """Answers `Submit`."""

    job_id: str


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """Answers `Cancel`."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Answers `AskEnd`: how the job ended, and the last line of its log."""

    words: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Answers any request that failed."""

    message: str


Request = Offer | Submit | Cancel | AskEnd
Answer = Offered | Submitted | Cancelled | Ended | Failed


def main() -> None:
    """Answer one request."""
    request: Request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        answer = _answer(request)
    except SlurmkitError as error:
        answer = Failed(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _answer(request: Request) -> Answer:
    cluster = Cluster()
    match request:
        case Offer():
            return offer(cluster, request.profiles)
        case Submit():
            return Submitted(submit(cluster, request))
        case Cancel():
            return cancel(cluster, request.job_id)
        case AskEnd():
            return Ended(describe_end(cluster, request.job_id))


def default_profiles(capabilities: Capabilities) -> dict[str, JobTable]:
    """Return a profile without GPUs, and one for a GPU of each type of the default partition."""
    partition = capabilities.default_partition
    nodes = capabilities.nodes_of(partition.name) if partition else capabilities.nodes
    gpus = (gres for node in nodes for gres in node.gres if gres.name == "gpu")
    types = sorted({gres.type for gres in gpus if gres.type})
    with_gpu: dict[str, JobTable] = {f"1 × {name}": {"gpus": f"{name}:1"} for name in types}
    return {"No GPU": {}} | with_gpu


def offer(cluster: Cluster, profiles: dict[str, JobTable]) -> Offered:
    """Return the profiles with what keeps the person from each, and when each may start.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    site = SiteState(cluster.capabilities(), cluster.standing())
    jobs = profiles or default_profiles(site.capabilities)
    choices = tuple(_choice(cluster, site, name, job) for name, job in jobs.items())
    return Offered(choices, accounts_of(site.standing))


def accounts_of(standing: Standing) -> tuple[str, ...]:
    """Return the accounts of a person, the default one first."""
    own = {each.account for each in standing.associations if each.user == standing.user}
    return tuple(sorted(own, key=lambda name: (name != standing.default_account, name)))


def _choice(cluster: Cluster, site: SiteState, name: str, job: JobTable) -> Choice:
    try:
        spec = parse_profile(name, job, ("true",))
        planned = with_past_waits(plan(spec, cluster, known=site), cluster)
    except SlurmkitError as error:
        return Choice(name, refusals=(str(error),))
    known = planned.estimate
    doubts = (each for each in planned.warnings if each.keeps_from_starting)
    return Choice(
        name,
        spec.time or "",
        tuple(each.message for each in (*planned.errors, *doubts)),
        known.start if known else None,
        known.waited if known and known.past_waits else "",
    )


def parse_profile(name: str, job: JobTable, command: tuple[str, ...]) -> JobSpec:
    """Return the job of a profile, with this command.

    Raises:
        BadInput: naming the profile and the key.
    """
    try:
        fields = {"time": _WALL_TIME} | parse_job_table(dict(job), Path("/"))
        return JobSpec(**fields | {"command": command, "script": None})
    except BadInput as error:
        raise BadInput(f"profile {name!r} of the hub: {error}") from error


def submit(cluster: Cluster, request: Submit) -> str:
    """Submit the job of a server, and return its id.

    Raises:
        BadInput: for a profile that is not there, and for a request that the site does not allow.
        SlurmError: when Slurm refuses it, or does not answer.
    """
    profiles = request.profiles or default_profiles(cluster.capabilities())
    name = request.profile or next(iter(profiles))
    if name not in profiles:
        raise BadInput(f"no profile {name!r}; the hub has: {', '.join(profiles)}")
    section = load_section(JUPYTER.command, ServerSection)
    spec = parse_profile(name, profiles[name], server_command(request.command, section))
    server = msgspec.structs.replace(
        spec,
        launch=Launch(launcher="none"),
        job_name=request.name,
        time=request.time or spec.time,
        account=request.account or spec.account,
        environment=spec.environment | request.environment,
        requeue=False,  # the hub has one address for it
        chdir=spec.chdir or str(Path.home()),
        output=spec.output or str(_log_folder() / "%j.log"),
    )
    return cluster.submit(plan(server, cluster, ask=False)).id


def server_command(argv: tuple[str, ...], section: ServerSection) -> tuple[str, ...]:
    """Return the command of the job: the site's setup, and the program that watches the server."""
    setup = section.setup.strip().splitlines()
    # -I: a json.py in the home is not the standard library's.
    lines = [*setup, 'exec python3 -I -c "$@"']
    return ("bash", "-c", "\n".join(lines), "slurmkit-jupyterhub", inspect.getsource(in_job), *argv)


def _log_folder() -> Path:
    folder = state_folder(LOG_FOLDER)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SlurmkitError(
            f"cannot make {folder} for the logs of servers: {describe_write_error(error)}"
        ) from error
    return folder


def cancel(cluster: Cluster, job_id: str) -> Answer:
    """Cancel a job; one that is over is fine.

    Raises:
        SlurmError: when Slurm refuses, or does not answer.
    """
    for error in cluster.cancel([job_id]).values():
        if not cluster.job(job_id).info().is_over:
            raise error
    return Cancelled()


def describe_end(cluster: Cluster, job_id: str) -> str:
    """Return how a job ended, with the last line of its log.

    Raises:
        SlurmError: when Slurm does not answer.
    """
    job = cluster.job(job_id)
    words = f"job {job_id} {job.outcome().words}"
    try:
        last = job.log(lines=1).text().strip()
    except SlurmkitError:
        last = ""
    return f"{words}: {last}" if last else words


if __name__ == "__main__":
    main()
