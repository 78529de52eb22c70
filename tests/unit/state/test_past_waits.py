"""How long jobs like one waited: which jobs are alike, what is said, and what is kept of it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from slurmkit.errors import BrokenPlugin, LedgerError, NoLedger, ServiceError
from slurmkit.state import past_waits
from slurmkit.state.cache import load_cached
from slurmkit.state.past_waits import (
    NO_GPUS,
    AmountClass,
    JobKind,
    PastWaits,
    WaitsOfKind,
    job_kind,
    load_past_waits,
)
from slurmkit.testing import FakeSlurm

HOUR = 3600
A100S = {"gres/gpu": 3, "gres/gpu:a100": 3, "node": 2, "cpu": 8}
KIND = job_kind("gpu", "normal", A100S, 2 * HOUR)
WAITS = WaitsOfKind(kind=KIND, jobs=1214, half=720, nine_in_ten=3 * HOUR)
KNOWN = PastWaits(kinds=(WAITS,), begin=1_790_000_000, end=1_792_592_000, source="ledger")


def slurm() -> FakeSlurm:
    found = FakeSlurm({})
    found.key = "lab"  # type: ignore[attr-defined] # as of a cluster over SSH
    return found


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers functions as the plugins there are, by name."""

    def register(**readers: Callable[[str], PastWaits]) -> None:
        known = {
            name: SimpleNamespace(
                title=f"plugin {name}",
                distribution="ours",
                load=lambda read=read: lambda: SimpleNamespace(read_past_waits=read),
            )
            for name, read in readers.items()
        }
        monkeypatch.setattr(past_waits, "plugins", {"past_waits": known}.__getitem__)

    return register


@pytest.mark.parametrize(
    ("gpus", "span"),
    [(1, (1, 1)), (2, (2, 4)), (4, (2, 4)), (5, (5, 8)), (32, (9, 32)), (33, (33, None))],
)
def test_jobs_with_about_as_many_gpus_are_alike(gpus: int, span: tuple[int, int | None]) -> None:
    kind = job_kind("gpu", "normal", {"gres/gpu:a100": gpus, "node": 1}, HOUR)
    assert (kind.gpus, kind.gpu_type, kind.nodes) == (AmountClass(*span), "a100", None)


@pytest.mark.parametrize(
    ("seconds", "span"),
    [(60, (1, HOUR)), (HOUR, (1, HOUR)), (HOUR + 1, (HOUR + 1, 4 * HOUR)),
     (24 * HOUR, (4 * HOUR + 1, 24 * HOUR)), (48 * HOUR, (24 * HOUR + 1, None)),
     (None, (24 * HOUR + 1, None))],
)  # fmt: skip
def test_jobs_with_about_the_same_limit_are_alike(
    seconds: int | None, span: tuple[int, int | None]
) -> None:
    assert job_kind("gpu", None, {"node": 1}, seconds).limit == AmountClass(*span)


def test_jobs_without_gpus_are_alike_by_their_nodes() -> None:
    kind = job_kind("cpu", "normal", {"node": 3, "cpu": 9}, HOUR)
    assert (kind.gpus, kind.nodes) == (NO_GPUS, AmountClass(2, 4))
    assert kind.describe() == (
        "on 2 to 4 nodes without GPUs in partition cpu, QOS normal, time limit up to 60 min"
    )
    *_, widest = kind.wider()
    assert widest.describe() == "without GPUs in partition cpu"


def test_gpus_of_two_types_and_of_none_are_of_any_type() -> None:
    mixed = {"gres/gpu": 4, "gres/gpu:a100": 2, "gres/gpu:h100": 2}
    for tres in (mixed, {"gres/gpu": 4}):
        kind = job_kind("gpu", None, tres, HOUR)
        assert (kind.gpus, kind.gpu_type) == (AmountClass(2, 4), None)


def test_each_wider_kind_leaves_one_thing_out() -> None:
    assert [each.describe() for each in KIND.wider()] == [
        "with 2 to 4 a100 GPUs in partition gpu, QOS normal, time limit 60 min to 4 h",
        "with 2 to 4 a100 GPUs in partition gpu, QOS normal",
        "with 2 to 4 a100 GPUs in partition gpu",
        "with 1 or more a100 GPUs in partition gpu",
        "with 2 to 4 GPUs in partition gpu, QOS normal, time limit 60 min to 4 h",
        "with 2 to 4 GPUs in partition gpu, QOS normal",
        "with 2 to 4 GPUs in partition gpu",
        "with 1 or more GPUs in partition gpu",
    ]


def test_the_waits_of_the_closest_kind_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert KNOWN.describe(KIND) == (
        "half up to 12 min, nine in ten up to 3 h: 1,214 or more jobs with 2 to 4 a100 GPUs in"
        " partition gpu, QOS normal, time limit 60 min to 4 h that started from 2026-09-21 to"
        " 2026-10-21 14:13:20 UTC (ledger)"
    )
    wide = KIND.wider()[3]
    widely = msgspec.structs.replace(KNOWN, kinds=(msgspec.structs.replace(WAITS, kind=wide),))
    assert "1 or more a100 GPUs" in widely.describe(KIND)
    both = msgspec.structs.replace(KNOWN, kinds=(*widely.kinds, *KNOWN.kinds))
    assert both.find(KIND) == WAITS
    own = msgspec.structs.replace(KNOWN, only_user="alice")
    assert own.describe(KIND).endswith("(ledger, only jobs of alice)")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "1 min"), (60, "1 min"), (61, "2 min"), (89 * 60, "89 min"), (89 * 60 + 1, "2 h"),
     (12_500, "4 h"), (47 * HOUR, "47 h"), (47 * HOUR + 1, "2 days"), (59 * HOUR, "3 days")],
)  # fmt: skip
def test_a_wait_is_rounded_up(seconds: int, said: str) -> None:
    waits = msgspec.structs.replace(WAITS, half=seconds)
    known = msgspec.structs.replace(KNOWN, kinds=(waits,))
    assert known.describe(KIND).startswith(f"half up to {said}, ")


def test_too_few_jobs_are_said_to_be_too_few() -> None:
    other = job_kind("long", "normal", A100S, HOUR)
    assert KNOWN.find(other) is None
    assert KNOWN.describe(other).startswith("unknown: too few jobs like this started from")


def test_one_reading_serves_an_hour(sources, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    sources(ledger=lambda cluster: asked.append(cluster) or KNOWN)
    first = load_past_waits(slurm(), "lab")
    assert (first.kinds, first.source, asked) == (KNOWN.kinds, "ledger", ["lab"])
    assert load_past_waits(slurm(), "lab") == first
    assert asked == ["lab"]
    monkeypatch.setattr(past_waits.time, "time", lambda: first.asked + HOUR + 1)
    load_past_waits(slurm(), "lab")
    assert asked == ["lab", "lab"]


def test_another_ledger_has_waits_of_its_own(sources, monkeypatch: pytest.MonkeyPatch) -> None:
    sources(ledger=lambda _: KNOWN)
    assert load_past_waits(slurm(), "lab").kinds
    monkeypatch.setenv("SLURMKIT_DB", "sqlite:////tmp/test.db")
    sources(ledger=lambda _: PastWaits())
    assert not load_past_waits(slurm(), "lab").kinds


def test_of_a_stand_in_nothing_is_known(sources) -> None:
    sources(ledger=lambda _: pytest.fail("it is asked"))
    assert load_past_waits(FakeSlurm({}), "lab") == PastWaits()


def test_without_a_ledger_nothing_is_said(sources, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> PastWaits:
        raise NoLedger("there is no ledger at …")

    def not_installed(_: str) -> PastWaits:
        raise BrokenPlugin("No module named 'sqlalchemy'")

    monkeypatch.setattr(past_waits, "OWN_DISTRIBUTION", "ours")
    sources(ledger=none, other=not_installed)
    assert load_past_waits(slurm(), "lab").describe(KIND) == ""


def test_why_nothing_is_known_is_said_and_another_source_asked(sources, monkeypatch) -> None:
    def away(_: str) -> PastWaits:
        raise ServiceError("the service does not answer")

    def broken(_: str) -> PastWaits:
        raise ZeroDivisionError("x")

    def newer(_: str) -> PastWaits:
        raise LedgerError("it was made by a newer slurmkit")

    def elsewhere(_: str) -> PastWaits:
        return PastWaits(problem="it has no runs of cluster lab")

    sources(away=away, broken=broken, elsewhere=elsewhere, newer=newer)
    found = load_past_waits(slurm(), "lab")
    assert found.describe(KIND) == (
        "unknown: away: the service does not answer; plugin broken: ZeroDivisionError: x;"
        " elsewhere: it has no runs of cluster lab; newer: it was made by a newer slurmkit"
    )
    sources(away=away, elsewhere=elsewhere, other=lambda _: KNOWN)
    assert load_past_waits(slurm(), "lab").problem  # not asked again so soon
    monkeypatch.setattr(past_waits.time, "time", lambda: found.asked + 601)
    assert load_past_waits(slurm(), "lab").source == "other"


def test_a_slow_source_does_not_hold_a_plan_up(sources, monkeypatch) -> None:
    monkeypatch.setattr(past_waits, "_DEADLINE", 0.05)
    go = threading.Event()

    def slow(_: str) -> PastWaits:
        go.wait(60)
        return KNOWN

    sources(ledger=slow)
    found = load_past_waits(slurm(), "lab")
    go.set()
    assert re.fullmatch(r"unknown: no answer within 0.05 s", found.describe(KIND))
    assert load_cached("past-waits", "lab", PastWaits) == found


def test_a_kind_is_the_same_after_a_file() -> None:
    copy = msgspec.json.decode(msgspec.json.encode(KNOWN), type=PastWaits)
    assert copy == KNOWN
    assert copy.find(JobKind(**{f: getattr(KIND, f) for f in KIND.__struct_fields__})) == WAITS
