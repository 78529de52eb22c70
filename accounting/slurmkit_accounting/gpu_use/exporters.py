"""Read `slurmkit gpu-exporter` on nodes: 200 at a time, each with a deadline.

A node that does not answer in time, or whose answer is not an exporter's page, costs its own
samples and nothing else. Nodes that did not answer are asked last, and a round ends in time,
however many of them there are.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from slurmkit.config.files import read_secret_file
from slurmkit.errors import BadConfig
from slurmkit.formats.tres import gpu_count, parse_tres
from slurmkit.state.gres import HoldingJob
from slurmkit_accounting.config import GpuUseSection
from slurmkit_accounting.gpu_use.samples import (
    PARTS,
    JobReading,
    NodeAnswer,
    PageError,
    parse_job,
    parse_page,
)

EXPORTER = "exporter"
NODE = "{node}"
MOST_BYTES = 4 * 2**20
"""Size of the largest page that is read; one of eight GPUs has some 20 KiB."""
_AT_ONCE = 200  # open connections
_NOT_ASKED = "it was not asked: too many others did not answer"
_SHARE_OF_INTERVAL = 0.8  # in which a round shall end
_PORTS = {"http": 80, "https": 443}
_FIRST_PORT_OF_USERS = 1024  # Linux' default of net.ipv4.ip_unprivileged_port_start


class ExporterAddress(NamedTuple):
    """Where exporters listen, and how they are asked.

    Attributes:
        url: with `{node}` for the node's name.
        token: bearer token; empty for none.
        deadline: seconds in which a node must have answered.
        asking: seconds after the begin of a round in which the last nodes are asked.
    """

    url: str
    token: str
    deadline: float
    asking: float = 20.0


ReadExporters = Callable[[ExporterAddress, Collection[str]], Mapping[str, NodeAnswer]]


class Exporters:
    """The exporters of a cluster's nodes, as a source of samples.

    Args:
        where: see `ExporterAddress`.
        read: reads the exporters of some nodes.
    """

    name = EXPORTER
    interval = 0

    def __init__(self, where: ExporterAddress, read: ReadExporters | None = None) -> None:
        self._where = where
        self._read = read or read_exporters
        self._rounds = 0
        self._asked: dict[str, int] = {}  # the round in which each node was last asked
        self._silent: set[str] = set()  # nodes that did not answer then

    def read(self, jobs: Iterable[HoldingJob]) -> Mapping[str, NodeAnswer]:
        """Read the exporters of the nodes of some jobs."""
        nodes = {node for job in jobs for node in job.nodes}
        answers = self._read(self._where, sorted(nodes, key=self._turn))
        self._rounds += 1
        for node, answer in answers.items():
            if answer.error != _NOT_ASKED:
                self._asked[node] = self._rounds
                (self._silent.add if answer.error else self._silent.discard)(node)
        self._asked = {node: self._asked[node] for node in self._asked.keys() & nodes}
        self._silent &= nodes
        return answers

    def _turn(self, node: str) -> tuple[bool, int, str]:
        """Return when a node is asked: silent ones last, and who waits longest before others."""
        return node in self._silent, self._asked.get(node, 0), node


def exporter_address(section: GpuUseSection) -> ExporterAddress:
    """Return where the exporters listen.

    Raises:
        BadConfig: when the URL is not one, when everybody can read the file of the token, or when
            a job could take the port and be sent the token.
    """
    parts = urlsplit(section.url)
    if parts.scheme not in _PORTS or NODE not in parts.netloc or not _has_port(parts):
        raise BadConfig(
            f"[gpu_use] url is {section.url!r}; write http://{NODE}:PORT/metrics or https://…,"
            f" with {NODE} where the name of the node goes"
        )
    token = read_secret_file("[gpu_use] token_file", section.token_file).strip()
    if not token.isascii() or not token.isprintable():
        raise BadConfig("[gpu_use] token_file: a token has only ASCII characters, without blanks")
    if token:
        refuse_port_of_users(section, "be sent the token")
    within = _SHARE_OF_INTERVAL * section.interval
    asking = max(within - section.deadline, within / 2)
    return ExporterAddress(section.url, token, section.deadline, asking)


def refuse_port_of_users(section: GpuUseSection, harm: str) -> None:
    """Refuse an address at which a job could answer in the place of an exporter.

    Args:
        section: names the address.
        harm: what the job could do then.

    Raises:
        BadConfig: for plain HTTP on a port that every user may open.
    """
    parts = urlsplit(section.url)
    port = parts.port or _PORTS[parts.scheme]
    if parts.scheme == "http" and port >= _FIRST_PORT_OF_USERS:
        raise BadConfig(
            f"[gpu_use] url has port {port}: a job could listen there while the exporter is down,"
            f" and {harm}; let the exporters listen on a port below 1024, e.g. 332, and"
            f" write http://{NODE}:332/metrics"
        )


def _has_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def read_exporters(where: ExporterAddress, nodes: Collection[str]) -> dict[str, NodeAnswer]:
    """Read the exporters of some nodes, in their order, and return each one's answer."""
    return asyncio.run(_read_all(where, nodes))


async def _read_all(where: ExporterAddress, nodes: Collection[str]) -> dict[str, NodeAnswer]:
    turns = asyncio.Semaphore(_AT_ONCE)
    clock = asyncio.get_running_loop().time
    end = clock() + where.asking
    secure = ssl.create_default_context() if where.url.startswith("https:") else None

    async def read(node: str) -> NodeAnswer:
        async with turns:
            if clock() > end:
                return NodeAnswer(error=_NOT_ASKED)
            return await _read_node(where, node, secure)

    answers = await asyncio.gather(*map(read, nodes))
    return dict(zip(nodes, answers, strict=True))


async def _read_node(
    where: ExporterAddress, node: str, secure: ssl.SSLContext | None
) -> NodeAnswer:
    try:
        async with asyncio.timeout(where.deadline):
            at, page = await _get(where, node, secure)
        return parse_page(page, at)
    except TimeoutError:
        return NodeAnswer(error=f"no answer within {where.deadline:g} s")
    except (OSError, ValueError) as error:  # a name that cannot be a host's is a ValueError
        return NodeAnswer(error=str(error) or type(error).__name__)


async def _get(
    where: ExporterAddress, node: str, secure: ssl.SSLContext | None
) -> tuple[float, str]:
    """Return the page of a node, and the time at which it began to arrive."""
    parts = urlsplit(where.url.replace(NODE, node))
    host, port = parts.hostname or node, parts.port or _PORTS[parts.scheme]
    reader, writer = await asyncio.open_connection(host, port, ssl=secure, limit=2**16)
    try:
        # With HTTP/1.0 the page ends where the connection ends, and comes in one piece.
        login = f"Authorization: Bearer {where.token}\r\n" if where.token else ""
        writer.write(
            f"GET {parts.path or '/'} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: text/plain\r\n"
            f"{login}\r\n".encode()
        )
        head = await _read_head(reader)
        at = time.time()
        _check_status(head)
        return at, (await _read_rest(reader)).decode("utf-8", "replace")
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise PageError("its answer begins with no HTTP header") from error
    except asyncio.IncompleteReadError as error:
        raise PageError("it closed the connection without an answer") from error


def _check_status(head: bytes) -> None:
    status = head.split(b"\r\n", 1)[0].split(None, 2)
    # It is shown in logs: only what can be a code.
    is_code = len(status) > 1 and len(status[1]) == 3 and status[1].isdigit()
    code = status[1].decode("ascii") if is_code else "none"
    if code in {"401", "403"}:
        raise PageError(f"it refuses the token (HTTP {code}); see [gpu_use] token_file")
    if code != "200":
        raise PageError(f"it answered with HTTP status {code}")


async def _read_rest(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while piece := await reader.read(2**16):
        body += piece
        if len(body) > MOST_BYTES:
            raise PageError(f"its page is larger than {MOST_BYTES // 2**20} MiB")
    return bytes(body)


def keep_confirmed(
    answers: Mapping[str, NodeAnswer], jobs: Iterable[HoldingJob]
) -> dict[str, NodeAnswer]:
    """Keep the readings of jobs that Slurm has on the node, of no more GPUs than each job holds.

    A page may be behind, and it may be forged, by a job that took the exporter's port. Such a page
    can give wrong values of the GPUs that jobs of its node hold, and no others.

    Args:
        answers: by node.
        jobs: the jobs that hold GPUs now.
    """
    most: dict[tuple[str, int], int] = {}
    for job in jobs:
        number = parse_job(job.raw_id.strip())
        if number is not None:
            most |= dict.fromkeys(((node, number) for node in job.nodes), most_gpus(job.tres))
    return {
        node: answer._replace(readings=tuple(_confirmed(node, answer.readings, most)))
        for node, answer in answers.items()
    }


def most_gpus(tres: str) -> int:
    """Return how many GPUs a job holds at most, on all its nodes, by its TRES.

    Of shards and MPS, each may be of another GPU.
    """
    parts = parse_tres(tres).items()
    return gpu_count(tres) or sum(
        int(count) for name, count in parts if name.startswith(PARTS) and count.isdecimal()
    )


def _confirmed(
    node: str, readings: Iterable[JobReading], most: Mapping[tuple[str, int], int]
) -> Iterable[JobReading]:
    by_job: dict[int, list[JobReading]] = defaultdict(list)
    for reading in readings:
        by_job[reading.job].append(reading)
    for job, own in by_job.items():
        if len(own) <= most.get((node, job), 0):
            yield from own


def describe_silent_nodes(answers: Mapping[str, NodeAnswer]) -> str:
    """Say how many nodes did not answer, and why the first did not; empty if all did."""
    silent = {node: answer.error for node, answer in answers.items() if answer.error}
    if not silent:
        return ""
    node = min(silent)
    return f"{len(silent)} of {len(answers)} nodes did not answer, e.g. {node}: {silent[node]}"
