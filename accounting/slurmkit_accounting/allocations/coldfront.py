"""Allocations that ColdFront grants: read from its REST API, and granted in the ledger.

ColdFront's plugin `api` (1.1.7 and later) only reads, and shows no dates: so an allocation of
ColdFront is granted here without an end, and ended when ColdFront no longer has it in force. One
that comes back into force is granted once more: each time is a turn.
"""

from __future__ import annotations

import math
import re
import ssl
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec
from sqlalchemy import select

from slurmkit.config.files import read_secret_file
from slurmkit.errors import BadConfig, BadInput, NotAllowed, ServiceError
from slurmkit_accounting.allocations.amounts import (
    HOUR_MS,
    UNIT_NAMES,
    Unit,
    format_hours,
    parse_hours,
)
from slurmkit_accounting.allocations.balance import balances
from slurmkit_accounting.allocations.changes import (
    Posted,
    Posting,
    expire_allocation,
    grant_once,
    top_up_allocation,
)
from slurmkit_accounting.allocations.model import Allocation, EntryKind, Holder, load_allocations
from slurmkit_accounting.config import ColdfrontSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.allocations import allocation_entries, allocations
from slurmkit_accounting.remote.https import ask, is_https_or_loopback
from slurmkit_accounting.remote.served import AnyLedger, also_remote
from slurmkit_accounting.reports.question import EVERYTHING, Scope

_IN_FORCE = ("Active", "Renewal Requested")  # ColdFront's statuses in which people may use it
_ACCOUNT = "slurm_account_name"  # the attribute in which ColdFront's plugin slurm has it, too
_IDENTITY = re.compile(r"coldfront:(\d+):(\d+)")
_MOST_BYTES = 64 * 2**20  # of an answer; an allocation has some hundred bytes
_HINTS = {
    3: ", which is a redirect; write its own address into [coldfront] url",
    4: "; ColdFront needs its plugin: PLUGIN_API=True",
}
_FoundT = TypeVar("_FoundT")


class _Attribute(msgspec.Struct, frozen=True):
    allocation_attribute_type: str
    value: str


class _AllocationRow(msgspec.Struct, frozen=True):
    id: int
    project: str
    status: str
    allocation_attributes: tuple[_Attribute, ...] | None


class _ProjectAllocation(msgspec.Struct, frozen=True):
    id: int


class _ProjectRow(msgspec.Struct, frozen=True):
    pi: str
    allocations: tuple[_ProjectAllocation, ...] | None


class ColdfrontAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation as ColdFront has it.

    Attributes:
        number: its id there.
        project: title of its project; any text.
        in_force: whether people may use it now.
        accounts: Slurm accounts that it names.
        pi: user name of the project's PI; empty if ColdFront does not show the project.
        hours: its hours, as ColdFront has them; empty for storage, for example.
    """

    number: int
    project: str
    in_force: bool
    accounts: tuple[str, ...] = ()
    pi: str = ""
    hours: tuple[str, ...] = ()


class ColdfrontGrant(msgspec.Struct, frozen=True):
    """An allocation of the ledger that ColdFront granted.

    Attributes:
        number: its id in ColdFront.
        turn: 1 for the first time that it was in force.
        used_ms: what was charged to it, without what was refunded.
        is_over: whether it has ended.
    """

    number: int
    turn: int
    allocation: Allocation
    used_ms: int
    is_over: bool

    @property
    def granted_ms(self) -> int:
        """What ColdFront granted in this turn."""
        return sum(_of_kind(self.allocation, "grant", "top-up"))

    @property
    def gone_ms(self) -> int:
        """What is not there for a later turn: what was used, and moved to other allocations."""
        return self.used_ms - sum(_of_kind(self.allocation, "transfer", "carry-over"))


class ColdfrontGrants(msgspec.Struct, frozen=True):
    """All allocations of the ledger that ColdFront granted.

    Attributes:
        rows: by id, each with its turns in order.
        last_ingest: when jobs were last read from Slurm, of the cluster read longest ago; None for
            never.
    """

    rows: tuple[ColdfrontGrant, ...]
    last_ingest: int | None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What brings the ledger in step with one allocation of ColdFront.

    Attributes:
        number: its id in ColdFront.
        kind: `problem` if nothing can be done; `problem` then says why.
        holder: of a grant.
        amount_ms: of a grant or top-up.
        granted_ms: of a top-up: what was granted before it.
        begin: of a grant: epoch seconds from which use counts.
        turn: of a grant.
        allocation: of a top-up or expiry: the ledger's allocation.
    """

    number: int
    project: str
    kind: Literal["grant", "top-up", "expiry", "problem"]
    holder: Holder | None = None
    amount_ms: int = 0
    granted_ms: int = 0
    begin: int = 0
    turn: int = 1
    allocation: int = 0
    problem: str = ""


def read_coldfront(section: ColdfrontSection) -> list[ColdfrontAllocation]:
    """Read all allocations that the user of the token may see, by id.

    Raises:
        BadConfig: for a URL or token that cannot be used.
        ServiceError: when ColdFront does not answer, or not as its API does.
    """
    client = _Client(section)
    rows = client.read("allocations/?allocation_attributes=true", tuple[_AllocationRow, ...])
    projects = client.read("projects/?allocations=true", tuple[_ProjectRow, ...])
    pis = {each.id: project.pi for project in projects for each in project.allocations or ()}
    found = (_to_allocation(row, pis.get(row.id, ""), section.hours) for row in rows)
    return sorted(found, key=lambda one: one.number)


def _to_allocation(row: _AllocationRow, pi: str, hours: str) -> ColdfrontAllocation:
    values: dict[str, list[str]] = defaultdict(list)
    for each in row.allocation_attributes or ():
        values[each.allocation_attribute_type].append(each.value.strip())
    return ColdfrontAllocation(
        number=row.id,
        project=row.project,
        in_force=row.status in _IN_FORCE,
        accounts=tuple(dict.fromkeys(name.lower() for name in values[_ACCOUNT] if name)),
        pi=pi,
        hours=tuple(values[hours]),
    )


class _Client:
    """ColdFront's REST API."""

    def __init__(self, section: ColdfrontSection) -> None:
        if not is_https_or_loopback(section.url):
            raise BadConfig(
                "[coldfront] url is not the address of a ColdFront; write https://HOST, or"
                " http://localhost:PORT"
            )
        token = read_secret_file("[coldfront] token_file", section.token_file).strip()
        if not token.isalnum() or not token.isascii():
            raise BadConfig(
                "[coldfront] token_file has no token; a user of ColdFront who may see all"
                " allocations finds one on their profile page"
            )
        try:
            self._trusted = ssl.create_default_context(cafile=section.ca_file or None)
        except OSError as error:
            raise BadConfig(f"[coldfront] ca_file: cannot read {section.ca_file}") from error
        self._section = section
        self._headers = {"Authorization": f"Token {token}", "Accept": "application/json"}

    def read(self, path: str, kind: type[_FoundT]) -> _FoundT:
        """Return the answer about a path below `/api/`."""
        url = f"{self._section.url.rstrip('/')}/api/{path}"
        try:
            status, text = ask(
                url,
                self._headers,
                timeout=self._section.timeout,
                trusted=self._trusted,
                most=_MOST_BYTES,
            )
        except OSError as error:
            raise ServiceError(f"ColdFront: {error}; see [coldfront] url and timeout") from error
        if status in (401, 403):
            raise ServiceError(
                f"{url} refuses the token (HTTP {status}); see [coldfront] token_file"
            )
        if status != 200:
            raise ServiceError(f"{url} answers with HTTP {status}{_HINTS.get(status // 100, '')}")
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ServiceError(f"{url} does not answer as ColdFront's API does: {error}") from error


@also_remote
def coldfront_grants(
    ledger: Ledger, *, uid: int = -1, scope: Scope = EVERYTHING
) -> ColdfrontGrants:
    """Return the allocations that ColdFront granted.

    Args:
        ledger: an open ledger.
        uid: who asks; the service sets it.
        scope: what the asker may see.

    Raises:
        NotAllowed: when the asker is no operator.
        LedgerError: when the ledger cannot be read.
    """
    if not scope.is_everything:
        raise NotAllowed("only operators may see what ColdFront granted; see: slurmkit balance")
    table = allocation_entries.c
    query = select(table.identity, table.allocation_id).where(
        table.kind == "grant", table.identity.like("coldfront:%")
    )
    with ledger.transaction() as connection:
        names = {row.allocation_id: row.identity for row in connection.execute(query)}
        found = load_allocations(connection, allocations.c.id.in_(names))
    shown = balances(ledger, everything=True, ended=True, uid=uid, scope=scope)
    states = {one.id: one for row in shown.rows for one in row.allocations}
    grants = []
    for one in found:
        if match := _IDENTITY.fullmatch(names[one.id]):
            state, (number, turn) = states[one.id], map(int, match.groups())
            used = state.used_ms - sum(_of_kind(one, "refund"))
            grants.append(ColdfrontGrant(number, turn, one, used, is_over=state.state == "ended"))
    rows = sorted(grants, key=lambda grant: (grant.number, grant.turn))
    return ColdfrontGrants(tuple(rows), shown.last_ingest)


def _of_kind(allocation: Allocation, *kinds: EntryKind) -> list[int]:
    return [entry.amount_ms for entry in allocation.entries if entry.kind in kinds]


def plan_steps(
    found: Sequence[ColdfrontAllocation],
    known: ColdfrontGrants,
    today: int,
    unit: Unit = "gpu",
    *,
    old_ledger: bool = False,
) -> Iterator[Step]:
    """Yield what brings the ledger in step with ColdFront, by id.

    Args:
        found: what ColdFront has.
        known: what it granted before.
        today: epoch seconds at which this day began: the use of a new grant counts from then.
        unit: what hours of ColdFront are.
        old_ledger: grant a further turn although the ledger has not read all jobs of the last one.
    """
    turns: dict[int, list[ColdfrontGrant]] = defaultdict(list)
    for grant in known.rows:
        turns[grant.number].append(grant)
    read_at = math.inf if old_ledger else known.last_ingest or 0
    for one in found:
        scene = _Scene(turns.pop(one.number, []), read_at, today, unit)
        step = _step(one, scene)
        if step is not None:
            yield step
    for number, grants in sorted(turns.items()):
        if not grants[-1].is_over:
            words = (
                "ColdFront no longer shows it, or not to this token; to end it: slurmkit allocation"
                f" expire {grants[-1].allocation.id} --why TEXT"
            )
            yield Step(number=number, project="", kind="problem", problem=words)


class _Scene(NamedTuple):
    """What the ledger has of an allocation of ColdFront."""

    turns: Sequence[ColdfrontGrant]
    read_at: float  # epoch seconds up to which the ledger has all jobs
    today: int
    unit: Unit

    @property
    def gone_ms(self) -> int:
        """What is gone of the turns that are over; more may have been moved to them than used."""
        return max(sum(turn.gone_ms for turn in self.turns if turn.is_over), 0)


def _step(one: ColdfrontAllocation, scene: _Scene) -> Step | None:
    turns = scene.turns
    last = turns[-1].allocation if turns and not turns[-1].is_over else None
    if last is None and (not one.in_force or not one.hours):
        return None  # it has ended, or is of storage, for example
    if last is not None and not one.in_force:
        return Step(number=one.number, project=one.project, kind="expiry", allocation=last.id)
    try:
        amount, holder = _amount(one), _holder(one)
        _require_unit(scene)
        if last is None:
            return _grant(one, holder, amount, scene)
        return _change(one, holder, amount, scene)
    except BadInput as error:
        return Step(number=one.number, project=one.project, kind="problem", problem=str(error))


def _amount(one: ColdfrontAllocation) -> int:
    """Return the hours of an allocation, in thousandths of a unit-second; 0 if it has none."""
    if len(one.hours) > 1:
        raise BadInput(f"it has hours several times: {', '.join(one.hours)}; leave one")
    hours = one.hours[0] if one.hours else ""
    return parse_hours(hours) if hours.strip("0.") else 0


def _holder(one: ColdfrontAllocation) -> Holder:
    """Return whom an allocation is for: its Slurm account, else the PI of its project."""
    if len(one.accounts) > 1:
        raise BadInput(f"it names several accounts: {', '.join(one.accounts)}; leave one")
    if one.accounts:
        return Holder("account", one.accounts[0])
    if not one.pi:
        raise BadInput(f"it has no {_ACCOUNT}, and ColdFront does not show the PI of its project")
    return Holder("pi", one.pi)


def _require_unit(scene: _Scene) -> None:
    """Refuse hours in another unit than before: what was used of them cannot be compared."""
    for turn in scene.turns:
        here = turn.allocation
        if here.unit != scene.unit:
            raise BadInput(
                f"it was granted in {here.unit_name} as allocation {here.id}; [coldfront] unit"
                " cannot be changed for it. Make a new allocation in ColdFront"
            )


def _grant(one: ColdfrontAllocation, holder: Holder, amount: int, scene: _Scene) -> Step | None:
    """Grant an allocation that came into force; what is gone of earlier turns is not given."""
    gone = scene.gone_ms
    ended = max((turn.allocation.finish or 0 for turn in scene.turns), default=0)
    if amount == 0:
        return None
    if ended > scene.read_at:
        raise BadInput(
            "it is in force again, and the ledger has not read the jobs of each cluster since it"
            " ended; run: slurmkit ledger ingest, and pull again. If a cluster is gone, add"
            " --old-ledger"
        )
    if gone >= amount:
        raise BadInput(
            f"it is in force again, and of its {format_hours(amount)} hours {format_hours(gone)}"
            " were used or given away before; raise its hours in ColdFront"
        )
    return Step(
        number=one.number,
        project=one.project,
        kind="grant",
        holder=holder,
        amount_ms=amount - gone,
        begin=max(scene.today, ended),
        turn=len(scene.turns) + 1,
    )


def _change(one: ColdfrontAllocation, holder: Holder, amount: int, scene: _Scene) -> Step | None:
    """Enter further hours; what was granted is never taken back, nor given to another holder."""
    last = scene.turns[-1]
    here, gone = last.allocation, scene.gone_ms
    if here.holder != holder:
        raise BadInput(
            f"it was granted to {here.holder} as allocation {here.id}, and ColdFront now names"
            f" {holder}; to move it: slurmkit allocation expire {here.id} --why TEXT"
        )
    before = last.granted_ms + gone
    if amount < before:
        earlier = f", and {format_hours(gone)} were used before it" if gone else ""
        raise BadInput(
            f"ColdFront has {format_hours(amount)} hours; {format_hours(last.granted_ms)} were"
            f" granted with allocation {here.id}{earlier}. No grant is taken back: set"
            f" {format_hours(before)} in ColdFront, or end the allocation here and there"
        )
    if amount == before:
        return None
    return Step(
        number=one.number,
        project=one.project,
        kind="top-up",
        amount_ms=amount - before,
        granted_ms=last.granted_ms,
        allocation=here.id,
    )


def take_step(
    ledger: AnyLedger, step: Step, section: ColdfrontSection, *, known: bool = False
) -> Posted:
    """Enter a step into the ledger, once; of two operators at a time, one may be refused.

    Args:
        ledger: a ledger open for writing, or behind the service.
        step: one without a problem.
        section: what unit hours of ColdFront are.
        known: whether to refuse holders whom the ledger does not know.

    Raises:
        BadInput: when it cannot be entered.
        LedgerError: when the ledger cannot be written.
    """
    why = f"ColdFront allocation {step.number}"
    name = f"coldfront:{step.number}"
    if step.kind == "grant":
        assert step.holder is not None  # noqa: S101 - a grant has one
        posting = Posting(why=why, identity=f"{name}:{step.turn}", known=known)
        return grant_once(
            ledger, step.holder.kind, step.holder.name, step.amount_ms, step.begin, posting,
            unit=section.unit,
        )  # fmt: skip
    if step.kind == "top-up":
        identity = f"{name}:{step.allocation}:from:{step.granted_ms}"
        posting = Posting(why=why, identity=identity, again=True)
        return top_up_allocation(ledger, step.allocation, step.amount_ms, posting)
    posting = Posting(why=f"{why} is not in force", identity=f"{name}:{step.allocation}:end")
    return expire_allocation(ledger, step.allocation, posting)


def usage_script(grants: Iterable[ColdfrontGrant], section: ColdfrontSection, age: str) -> str:
    """Return Python for `coldfront shell` that sets the usage of each allocation; only numbers.

    ColdFront's API cannot change anything.
    """
    used: dict[int, int] = defaultdict(int)
    for grant in grants:
        if grant.allocation.unit == section.unit:
            used[grant.number] += grant.used_ms
    return _SCRIPT.format(
        age=age,
        unit=UNIT_NAMES[section.unit],
        hours=section.hours,
        used=_dict_text({number: used_ms / HOUR_MS for number, used_ms in sorted(used.items())}),
    )


_SCRIPT = """\
# {unit} that slurmkit's ledger counted for allocations of ColdFront; {age}.
# On ColdFront's host: coldfront shell < THIS FILE
from coldfront.core.allocation.models import Allocation

for number, hours in {used}.items():
    for one in Allocation.objects.filter(pk=number):
        one.set_usage({hours!r}, hours)
"""


def _dict_text(values: Mapping[int, float]) -> str:
    lines = "".join(f"    {number}: {hours:.2f},\n" for number, hours in values.items())
    return f"{{\n{lines}}}"
