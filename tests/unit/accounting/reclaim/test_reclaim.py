"""Idle GPUs are given back: warned of, then checkpointed and held or cancelled; each act once."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
from entries import group, person
from idle_cluster import GRACE, PLAIN_SCRIPT, SURVIVES, FakeJob, IdleCluster, survival_script
from idle_lab import INTERVAL, START, History, brute_force, make_job, random_history
from mail_lab import Inbox, html_of, smtp, text_of
from slurmkit_accounting import read
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.gpu_use.recent import RecentSample, store_samples
from slurmkit_accounting.gpu_use.samples import GpuReading
from slurmkit_accounting.gpu_use.store import load_uses
from slurmkit_accounting.ledger.database import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.ledger.schema.gpu_use import gpu_samples
from slurmkit_accounting.ledger.schema.reclaim import reclaim_acts, reclaim_outcomes
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.people.model import Directory
from slurmkit_accounting.people.sync import PeopleData, sync_people
from slurmkit_accounting.reclaim import reclaimer as of_reclaimer
from slurmkit_accounting.reclaim.jobs import CheckpointRequest, read_checkpoint_request
from slurmkit_accounting.reclaim.keep import keep_job
from slurmkit_accounting.reclaim.policy import ReclaimJob, load_policies
from slurmkit_accounting.reclaim.reclaimer import Reclaimer
from slurmkit_accounting.remote.protocol import ServiceQuery
from slurmkit_accounting.reports.question import Scope
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.queries import QueryAnswerer
from sqlalchemy import delete, insert, select

from slurmkit.errors import BadInput, ControllerDown, Refused, SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.testing import FakeSlurm

UTC = find_zone("UTC")
HOUR = 3600
ALICE = sum(b"alice")
POLICY = {"action": "cancel", "minutes": 10, "skip_minutes": 0, "warn_minutes": 5}
WARNED, TAKEN = START + 600, START + 900  # when this policy acts on a job that never works


class Killed(BaseException):
    """The service is killed."""


@pytest.fixture
def site(inbox: Inbox, configure: Callable[[str], None]) -> Iterator[Callable[..., None]]:
    """Writes the configuration: a mail server and one policy."""

    def write(**policy: Any) -> None:
        lines = (f"{name} = {_toml(value)}" for name, value in (POLICY | policy).items())
        configure("\n".join((mail, "[reclaim.idle]", *lines)))

    with smtp(inbox) as port:
        mail = (
            f'[mail]\nhost = "127.0.0.1"\nport = {port}\nsecurity = "none"\n'
            'sender = "ledger@lab.example"'
        )
        write()
        yield write


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.fixture
def lab(ledger: Ledger) -> IdleCluster:
    people = tuple(map(person, ("alice", "vogel", "olga")))
    groups = (group("vision", "uid=alice", owners=("vogel",)),)
    sync_people(ledger, PeopleData(Directory(people, groups)), now=1)
    with ledger.transaction() as connection:
        connection.execute(insert(clusters), {"name": "lab"})
    return IdleCluster()


def service(lab: IdleCluster) -> Reclaimer:
    # Two looks of a round at what it began: those of the rest of its interval would be the same.
    return Reclaimer(open_for_writing, lab, UTC, patience=5, clock=lab.clock, sleep=lab.sleep)


def play(lab: IdleCluster, ledger: Ledger, until: float, of: Reclaimer | None = None) -> list[str]:
    """Let rounds pass; return what each said that did something."""
    of = of or service(lab)
    said = []
    while lab.now < until:
        grid = START + (lab.now - START) // INTERVAL * INTERVAL
        lab.sample(ledger, grid + INTERVAL)
        said.append(of.run("lab"))
    return list(filter(None, said))


def add(
    lab: IdleCluster, percents: list[int | None], script: str = PLAIN_SCRIPT, **other: Any
) -> FakeJob:
    facts = {"uid": ALICE, "gpus": 1} | other
    job = make_job(len(lab.jobs) + 1, **facts)
    return lab.add(History(job, tuple(tuple(percents) for _ in range(job.gpus))), script)


def acts(ledger: Ledger) -> list[tuple[str, str, int, str | None]]:
    query = select(
        reclaim_acts.c.job_id, reclaim_acts.c.action, reclaim_acts.c.at, reclaim_outcomes.c.outcome
    ).select_from(reclaim_acts.outerjoin(reclaim_outcomes))
    with ledger.transaction() as connection:
        return [tuple(row) for row in connection.execute(query.order_by(reclaim_acts.c.id))]


@pytest.mark.usefixtures("site")
def test_the_mail_shows_what_each_gpu_did(ledger: Ledger, lab: IdleCluster, inbox: Inbox) -> None:
    """Busy for five minutes, and idle since: a strip for each GPU, and nothing from elsewhere."""
    add(lab, [90] * (300 // INTERVAL) + [0] * 100, gpus=2, name="<b>x</b>")
    play(lab, ledger, WARNED + 360)
    (mail,) = inbox.mails
    html = html_of(mail)
    strips = [part.partition("</table>")[0] for part in html.split("table-layout:fixed")[1:]]
    assert len(strips) == 2
    for strip in strips:
        colours = re.findall(r'bgcolor="(#\w+)"', strip)
        busy, idle = colours.count("#1257a8"), colours.count("#ef9a3c")
        assert busy + idle == len(colours) == 36
        assert colours == ["#1257a8"] * busy + ["#ef9a3c"] * idle
        assert abs(busy / 36 - 300 / (lab_act(ledger) - START)) < 0.06
    assert html.count("GPU 0") == 1
    assert "http" not in html
    assert "<script" not in html
    assert "slurmkit reclaim keep 1 --reason &#34;why it needs idle GPUs&#34;" in html
    assert "slurmkit reclaim keep 1 --reason" in text_of(mail)


def lab_act(ledger: Ledger) -> int:
    """Return when the first act was."""
    return acts(ledger)[0][2]


@pytest.mark.usefixtures("site")
def test_a_job_that_does_not_survive_is_warned_and_then_cancelled(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox
) -> None:
    add(lab, [0] * 100, gpus=2)
    assert play(lab, ledger, WARNED) == ["1 mailed"]
    (warning,) = inbox.mails
    assert inbox.recipients == [["alice@lab.example"]]
    assert warning["Subject"] == "job 1: 2 of 2 GPUs idle for 10 minutes"
    text = text_of(warning)
    assert (
        "their mean utilization was 0.0 %, by 40 samples that cover 100% of this time"
        in " ".join(text.split())
    )
    assert "the job is cancelled from 2026-11-01 08:15:00 UTC on" in text
    assert "slurmkit reclaim keep 1 --reason" in text
    assert lab.done == []
    play(lab, ledger, TAKEN + 300)
    assert lab.done == ["scancel --state=RUNNING 1"]
    assert acts(ledger) == [
        ("1", "mail", WARNED, "mailed"), ("1", "cancel", TAKEN, "cancelled")
    ]  # fmt: skip
    assert [each["Subject"] for each in inbox.mails[1:]] == ["job 1 was cancelled: idle GPUs"]


@pytest.mark.parametrize("action", ["cancel", "requeue"])
def test_a_job_that_survives_is_asked_for_its_checkpoint_and_held(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox, site: Callable[..., None], action: str
) -> None:
    site(action=action)
    job = add(lab, [0] * 100, SURVIVES)
    play(lab, ledger, TAKEN + 120)
    assert lab.done == ["scancel --batch --signal=USR1 1", "scontrol uhold 1"]
    assert (job.state, job.reason) == ("PENDING", "JobHeldUser")
    assert [row[1:] for row in acts(ledger)] == [
        ("mail", WARNED, "mailed"), ("requeue", TAKEN, "held")
    ]  # fmt: skip
    warned, held = map(text_of, inbox.mails)
    assert "is asked for its checkpoint and requeued held" in " ".join(warned.split())
    assert "slurmkit release 1" in held


@pytest.mark.usefixtures("site")
def test_a_job_that_never_answers_the_signal_is_requeued_held_at_last(
    ledger: Ledger, lab: IdleCluster
) -> None:
    add(lab, [0] * 100, SURVIVES).back_after = 10_000
    play(lab, ledger, TAKEN + 300)
    assert lab.done == ["scancel --batch --signal=USR1 1", "scontrol requeuehold 1"]
    assert acts(ledger)[-1][1:] == ("requeue", TAKEN, "held")


@pytest.mark.parametrize(
    "script",
    [
        PLAIN_SCRIPT,
        survival_script(on_node_fail="requeue"),
        survival_script(on_timeout="fail"),
        survival_script(on_timeout="requeue", max_restarts=1),
    ],
    ids=["plain", "node fails", "never", "no restart left"],
)
def test_a_policy_that_requeues_leaves_others_alone(
    ledger: Ledger, lab: IdleCluster, site: Callable[..., None], script: str
) -> None:
    site(action="requeue")
    job = add(lab, [0] * 100, script)
    job.restarts = 1
    play(lab, ledger, TAKEN + 600)
    assert lab.done == []
    assert [row[1] for row in acts(ledger)] == ["mail"]


@pytest.mark.parametrize("action", ["requeue", "cancel"])
def test_a_service_without_rights_does_not_know_what_follows(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox, site: Callable[..., None], action: str
) -> None:
    """scontrol does not show the script, says so on stderr alone, and exits with 0."""
    site(action=action)
    job = add(lab, [0] * 100, "")
    said = play(lab, ledger, TAKEN + 60)
    assert "What follows is not known yet" in text_of(inbox.mails[0])
    assert any("is this account an operator of Slurm?" in line for line in said)
    assert [row[1] for row in acts(ledger)] == ["mail"]
    job.script = SURVIVES
    play(lab, ledger, TAKEN + 300)
    assert acts(ledger)[-1][1] == "requeue"


def test_without_a_word_of_the_site_nothing_is_done_to_jobs(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox, configure: Callable[[str], None]
) -> None:
    configure("[reclaim.idle]\nminutes = 10\nskip_minutes = 0\n")
    add(lab, [0] * 100)
    assert play(lab, ledger, START + HOUR) == ["1 reported"]
    assert (lab.done, inbox.mails) == ([], [])
    assert acts(ledger) == [("1", "report", WARNED, "reported")]


def test_rounds_of_the_service_do_what_the_brute_force_finds(
    ledger: Ledger, lab: IdleCluster, site: Callable[..., None]
) -> None:
    """Many jobs at the same time, also busy, unknown, thin, interactive and exempt ones."""
    site(covered=0.5, interactive_minutes=40, except_qos=["urgent"], except_users=["olga"],
         except_reservations=["course"], idle_share=0.5)  # fmt: skip
    policy = load_policies()["idle"]
    dice = random.Random(7)
    histories = []
    # PostgreSQL takes ten times as long for a round, and each job prolongs the whole.
    jobs = 16 if ledger.engine.dialect.name == "sqlite" else 4
    for number in range(1, jobs + 1):
        history = random_history(dice, number)
        histories.append(history)
        job = lab.add(history, SURVIVES if number % 2 else PLAIN_SCRIPT)
        job.back_after = 0.0
    of = service(lab)
    last = max(history.end for history in histories)
    while lab.now < last:
        grid = START + (int(lab.now) - START) // INTERVAL * INTERVAL
        lab.sample(ledger, grid + INTERVAL)
        for history in histories:
            job = lab.jobs[history.job.job_id]
            if lab.now > history.end and job.state == "RUNNING":
                job.state = "COMPLETED"
        of.run("lab")
    names = {"mail": "mail", "requeue": "take", "cancel": "take"}
    found: dict[str, list[tuple[str, int]]] = {}
    for job_id, action, at, outcome in acts(ledger):
        assert outcome in {"mailed", "held", "cancelled"}
        found.setdefault(job_id, []).append((names[action], at))
    expected = {
        history.job.job_id: steps
        for history in histories
        if (steps := brute_force(history, policy, UTC))
    }
    assert found == expected
    assert len(expected) >= jobs // 3
    touched = {command.split()[-1] for command in lab.done}
    assert touched == {job for job, steps in expected.items() if ("take" in dict(steps))}


@pytest.mark.parametrize("script", [PLAIN_SCRIPT, SURVIVES], ids=["plain", "survives"])
@pytest.mark.parametrize("moment", ["before the act", "after the act"])
@pytest.mark.usefixtures("site")
def test_a_service_that_is_killed_between_record_and_outcome_acts_once(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox, script: str, moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    job = add(lab, [0] * 200, script)
    play(lab, ledger, TAKEN - INTERVAL)

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if moment == "before the act":
            lab.fail = kill
        else:
            patch.setattr(of_reclaimer, "record_outcome", kill)
        with pytest.raises(Killed):
            play(lab, ledger, TAKEN + 120)
    assert [row[1:] for row in acts(ledger)][1:] == [
        ("requeue" if script is SURVIVES else "cancel", TAKEN, None)
    ]
    lab.fail = lambda: None
    play(lab, ledger, TAKEN + 600)
    assert len(acts(ledger)) == 2
    expected = ("held", "PENDING") if script is SURVIVES else ("cancelled", "CANCELLED")
    assert (acts(ledger)[-1][3], job.state) == expected
    assert sum("scancel" in command for command in lab.done) == 1
    assert len(inbox.mails) == 2


@pytest.mark.usefixtures("site")
def test_a_service_that_is_killed_as_it_warns_sends_one_mail(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lab, [0] * 200)

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(of_reclaimer, "record_outcome", kill)
        with pytest.raises(Killed):
            play(lab, ledger, WARNED)
    assert len(inbox.mails) == 1
    lab.sample(ledger, WARNED + INTERVAL)
    service(lab).run("lab")
    assert acts(ledger) == [("1", "mail", WARNED, "mailed")]
    assert len(inbox.mails) == 1


@pytest.mark.usefixtures("site")
def test_an_act_that_is_old_when_the_service_comes_back_is_not_done(
    ledger: Ledger, lab: IdleCluster
) -> None:
    """Meanwhile the job works again."""
    add(lab, [0] * 30 + [90] * 100)

    def kill() -> None:
        raise Killed

    play(lab, ledger, TAKEN - INTERVAL)
    lab.fail = kill
    with pytest.raises(Killed):
        play(lab, ledger, TAKEN)
    lab.fail = lambda: None
    lab.sample(ledger, TAKEN + 900)
    play(lab, ledger, TAKEN + 1200)
    assert lab.done == []
    assert acts(ledger)[-1] == ("1", "cancel", TAKEN, "not done")


@pytest.mark.usefixtures("site")
def test_slurm_that_refuses_and_slurm_that_is_away(ledger: Ledger, lab: IdleCluster) -> None:
    add(lab, [0] * 300)

    def away() -> None:
        raise ControllerDown("slurmctld does not answer")

    def refuse() -> None:
        raise Refused("Access/permission denied")

    lab.fail = away
    play(lab, ledger, TAKEN + 60)
    assert acts(ledger)[-1] == ("1", "cancel", TAKEN, None)
    lab.fail = refuse
    play(lab, ledger, TAKEN + 90)
    assert acts(ledger)[-1] == ("1", "cancel", TAKEN, "not done")
    rows = read.reclaimed(ledger, "2026-11-01", "2026-11-02", timezone="UTC").rows
    assert rows[-1]["why"] == "Access/permission denied"
    lab.fail = lambda: None
    play(lab, ledger, TAKEN + 1200)  # tried again after a while, not in each round
    assert [row[3] for row in acts(ledger)] == ["mailed", "not done", "cancelled"]


@pytest.mark.usefixtures("site")
def test_nothing_follows_a_mail_that_did_not_arrive(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox
) -> None:
    inbox.data = "451 later"
    add(lab, [0] * 200)
    play(lab, ledger, TAKEN + 120)
    assert lab.done == []
    assert {row[3] for row in acts(ledger)} == {"not mailed"}
    assert len(acts(ledger)) <= 2  # not one each round
    inbox.data = "250 OK"
    play(lab, ledger, TAKEN + 1500)
    assert lab.done == ["scancel --state=RUNNING 1"]


@pytest.mark.usefixtures("site")
def test_the_pi_gets_the_second_mail(ledger: Ledger, lab: IdleCluster, inbox: Inbox) -> None:
    add(lab, [0] * 20 + [90] * 4 + [0] * 40)
    play(lab, ledger, START + 24 * INTERVAL + 630)
    assert inbox.recipients == [
        ["alice@lab.example"], ["alice@lab.example", "vogel@lab.example"]
    ]  # fmt: skip


@pytest.mark.usefixtures("site")
def test_jobs_that_are_idle_at_once_are_one_offence(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox
) -> None:
    """Of two jobs warned in one round, the PI got the second mail."""
    add(lab, [0] * 290)
    add(lab, [0] * 290)
    play(lab, ledger, WARNED + 1000)
    assert lab.done == ["scancel --state=RUNNING 1", "scancel --state=RUNNING 2"]
    assert inbox.recipients == [["alice@lab.example"]] * 4


@pytest.mark.usefixtures("site")
def test_a_user_has_a_job_left_alone_once(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox, site: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    site(keep_hours=1, to_pi="always")
    monkeypatch.setattr("slurmkit_accounting.reclaim.keep.time.time", lab.clock)
    add(lab, [0] * 290)
    with pytest.raises(BadInput, match="job 1 is not yours, or had no mail about idle GPUs"):
        keep_job(ledger, "1", reason="data", uid=ALICE)
    play(lab, ledger, WARNED)
    with pytest.raises(BadInput, match="job 1 is not yours"):
        keep_job(ledger, "1", reason="it is not mine", uid=ALICE + 1)
    with pytest.raises(BadInput, match="give a reason"):
        keep_job(ledger, "1", reason=" \n ", uid=ALICE)
    kept = keep_job(ledger, "1", reason="reads its data\n until nine", uid=ALICE)
    assert (kept.cluster, kept.until, kept.reason) == (
        "lab", WARNED + HOUR, "reads its data until nine"
    )  # fmt: skip
    with pytest.raises(BadInput, match="once for a job"):
        keep_job(ledger, "1", reason="more data", uid=ALICE)
    play(lab, ledger, WARNED + HOUR)
    assert (lab.done, len(inbox.mails)) == ([], 1)
    play(lab, ledger, WARNED + HOUR + 600)  # a window later the user is warned anew
    assert "asked to leave it: reads its data until nine" in text_of(inbox.mails[1])
    assert inbox.recipients[1] == ["alice@lab.example", "vogel@lab.example"]
    assert lab.done == []
    play(lab, ledger, WARNED + HOUR + 1000)
    assert lab.done == ["scancel --state=RUNNING 1"]
    rows = read.reclaimed(ledger, "2026-11-01", "2026-11-02", timezone="UTC").rows
    assert [row["action"] for row in rows] == ["mail", "keep", "mail", "cancel"]
    assert rows[1]["why"] == "reads its data until nine"


@pytest.mark.sql
@pytest.mark.usefixtures("site")
def test_the_service_says_whose_job_is_to_be_kept(ledger: Ledger, lab: IdleCluster) -> None:
    add(lab, [0] * 100)
    play(lab, ledger, WARNED)
    slurm = FakeSlurm({"sacctmgr": lambda *_: ""})
    sights = Permissions(ServiceSection(), slurm, lambda *_, **__: None)
    answers = QueryAnswerer(open_for_reading, sights, lambda *_, **__: None, open_for_writing)
    asked = {"job": "1", "reason": "data"}
    stranger = answers(ALICE + 1, ServiceQuery("keep_job", asked))
    assert stranger.fault is not None
    assert "is not yours" in stranger.fault.message
    forged = answers(ALICE + 1, ServiceQuery("keep_job", asked | {"uid": ALICE}))
    assert forged.fault is not None
    assert "has no argument 'uid'" in forged.fault.message
    assert answers(ALICE, ServiceQuery("keep_job", asked)).fault is None


@pytest.mark.sql
def test_the_report_has_the_samples_and_what_was_won_back_at_most(
    ledger: Ledger, lab: IdleCluster, site: Callable[..., None]
) -> None:
    site()
    add(lab, [0] * 100, gpus=2, limit_end=TAKEN + 10 * HOUR)
    add(lab, [0] * 100, user="olga", uid=sum(b"olga"), account="other", limit_end=TAKEN + 10 * HOUR)
    add(lab, [90] * 100)
    play(lab, ledger, TAKEN + 60)
    report = read.reclaimed(ledger, "2026-11-01", "2026-11-02", timezone="UTC")
    rows = [row for row in report.rows if row["job"] == "1"]
    assert [(row["action"], row["outcome"]) for row in rows] == [
        ("mail", "mailed"), ("cancel", "cancelled")
    ]  # fmt: skip
    cancelled = rows[1]
    assert (cancelled["gpus"], cancelled["idle_gpus"], cancelled["samples"]) == (2, 2, 40)
    assert (cancelled["window_minutes"], cancelled["utilization"]) == (10, 0)
    assert cancelled["covered"] == 1
    assert cancelled["gpu_hours_at_most"] == pytest.approx(20, abs=0.01)
    assert report.meta.total["gpu_hours_at_most"] == pytest.approx(30, abs=0.02)
    (won,) = report.panels
    assert won.labels == ("alice", "olga")
    assert won.series[0].values == pytest.approx((20, 10), abs=0.02)
    assert cancelled["pi"] == "vogel"
    with ledger.transaction() as connection:
        by_person = dict(
            connection.exec_driver_sql("SELECT username, person_id FROM usernames").all()
        )
    vogel = frozenset((by_person["vogel"],))
    seen = read.reclaimed(
        ledger, "2026-11-01", "2026-11-02", timezone="UTC", scope=Scope(vogel, vogel)
    )
    assert {row["user"] for row in seen.rows} == {"alice"}
    only = read.reclaimed(
        ledger, "2026-11-01", "2026-11-02", timezone="UTC", filters={"user": ["olga"]}, job="2"
    )
    assert [row["job"] for row in only.rows] == ["2", "2"]


@pytest.mark.usefixtures("site")
def test_the_report_shows_an_act_of_this_very_second(ledger: Ledger, lab: IdleCluster) -> None:
    add(lab, [0] * 100)
    play(lab, ledger, WARNED + INTERVAL)
    (act,) = acts(ledger)
    for filters in ({}, {"user": ["alice"]}):
        found = read.reclaimed(ledger, timezone="UTC", now=act[2], filters=filters)
        assert [row["action"] for row in found.rows] == ["mail"]
    assert read.reclaimed(ledger, None, "2026-11-01", timezone="UTC", now=act[2]).rows == ()


@pytest.mark.parametrize(
    ("grace", "restarts"),
    [("9" * 5000, "20"), ("65536", "20"), ("0", "20"), ("60", "9" * 5000), ("٣٠", "20")],
    ids=["5000 digits", "more than a day", "none", "restarts of 5000 digits", "arabic digits"],
)
def test_a_script_with_numbers_that_no_submit_writes_holds_nobody_up(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox, site: Callable[..., None], grace: str,
    restarts: str,
) -> None:  # fmt: skip
    """Such a job counts as one that does not survive; the other jobs are judged as ever."""
    site()
    script = SURVIVES.replace(f"slurmkit_grace={GRACE}", f"slurmkit_grace={grace}")
    script = script.replace("slurmkit_restarts=20", f"slurmkit_restarts={restarts}")
    assert script != SURVIVES
    add(lab, [0] * 100, script)
    add(lab, [0] * 100)
    play(lab, ledger, TAKEN + 300)
    assert lab.done == ["scancel --state=RUNNING 1", "scancel --state=RUNNING 2"]
    assert [act[3] for act in acts(ledger)] == ["mailed", "mailed", "cancelled", "cancelled"]


@pytest.mark.usefixtures("site")
def test_an_error_of_one_job_does_not_end_the_round(
    ledger: Ledger, lab: IdleCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lab, [0] * 100)
    add(lab, [0] * 100)
    usual = of_reclaimer.read_checkpoint_request

    def read(slurm: SlurmCommands, job: ReclaimJob) -> CheckpointRequest | None:
        if job.job_id == "1":
            raise ValueError("no number")
        return usual(slurm, job)

    monkeypatch.setattr(of_reclaimer, "read_checkpoint_request", read)
    play(lab, ledger, TAKEN + 300)
    assert ("1", "mail", WARNED, "not done") in acts(ledger)
    assert ("2", "cancel", TAKEN, "cancelled") in acts(ledger)
    assert lab.done == ["scancel --state=RUNNING 2"]


@pytest.mark.parametrize(("action", "last"), [("cancel", "cancelled"), ("requeue", "not done")])
def test_a_job_that_cannot_be_requeued_is_cancelled_at_last(
    ledger: Ledger, lab: IdleCluster, inbox: Inbox, site: Callable[..., None], action: str,
    last: str,
) -> None:  # fmt: skip
    """It says that it survives, does not answer its signal, and was sent with --no-requeue."""
    site(action=action)
    add(lab, [0] * 1000, SURVIVES).back_after = 1e9
    usual = lab._scontrol

    def refuses(argv: Sequence[str], given: str | None) -> str:
        if argv[1] == "requeuehold":
            raise SlurmError("Requested operation is presently disabled")
        return usual(argv, given)

    lab._answers["scontrol"] = refuses
    play(lab, ledger, TAKEN + GRACE + 3600 + 120)
    assert acts(ledger)[1][1:] == ("requeue", TAKEN, last)
    assert lab.done.count("scancel --state=RUNNING 1") == (last == "cancelled")
    subjects = [each["Subject"] for each in inbox.mails]
    assert ("job 1 was cancelled: idle GPUs" in subjects) == (last == "cancelled")


@pytest.mark.parametrize("script", [PLAIN_SCRIPT, SURVIVES], ids=["plain", "survives"])
@pytest.mark.parametrize("what", ["keep", "work"])
@pytest.mark.parametrize("moment", ["while others are done", "while slurmctld is away"])
@pytest.mark.usefixtures("site")
def test_a_last_look_before_something_is_done(
    ledger: Ledger, lab: IdleCluster, script: str, what: str, moment: str
) -> None:
    """ "Leave it", and work, are seen up to the command itself."""
    add(lab, [0] * 400, script)
    play(lab, ledger, TAKEN - INTERVAL)
    of, changed = service(lab), []

    def change() -> None:
        if changed:
            return
        changed.append(what)
        if what == "keep":
            with mock.patch("slurmkit_accounting.reclaim.keep.time.time", return_value=lab.now):
                keep_job(ledger, "1", reason="it waits for its data", uid=ALICE)
        else:
            store_work(ledger, lab.now - 1)

    if moment == "while others are done":
        usual = of_reclaimer.read_checkpoint_request

        def read(slurm: SlurmCommands, job: ReclaimJob) -> CheckpointRequest | None:
            change()
            return usual(slurm, job)

        with mock.patch.object(of_reclaimer, "read_checkpoint_request", read):
            play(lab, ledger, TAKEN + 60, of)
    else:

        def away() -> None:
            lab.done.pop() if lab.done else None
            raise ControllerDown("slurmctld does not answer")

        lab.fail = away
        play(lab, ledger, TAKEN + 60, of)
        assert acts(ledger)[-1][2:] == (TAKEN, None)
        change()
        lab.fail = lambda: None
        play(lab, ledger, TAKEN + 120, of)
        assert acts(ledger)[-1][2:] == (TAKEN, "not done")
    assert changed == [what]
    assert lab.done == []


def store_work(ledger: Ledger, at: float) -> None:
    """Store one sample of a GPU that works, as it came from its exporter."""
    with ledger.transaction() as connection:
        (use,) = load_uses(connection)
        sample = RecentSample(use.id or 0, False, GpuReading(at=at, utilization=50))
        store_samples(connection, use.cluster_id, int(at), {"c1": [sample]})


def test_a_job_that_does_not_survive_is_not_asked_again_each_round(
    ledger: Ledger, lab: IdleCluster, site: Callable[..., None]
) -> None:
    site(action="requeue")
    add(lab, [0] * 400)
    of = service(lab)
    play(lab, ledger, WARNED + 60, of)
    before = len(lab.asked)
    play(lab, ledger, TAKEN + 1200, of)
    scripts = [argv for argv in lab.asked[before:] if argv[1] == "write"]
    assert len(scripts) == 1
    assert lab.done == []


@pytest.mark.sql
@pytest.mark.usefixtures("site")
def test_a_job_that_has_just_begun_to_work_is_left_alone(ledger: Ledger, lab: IdleCluster) -> None:
    """The last point of a long run's curve is the mean of many samples."""
    add(lab, [0] * 100)
    lab.sample(ledger, WARNED)
    with ledger.transaction() as connection:
        (use,) = load_uses(connection)
        sample = RecentSample(use.id or 0, False, GpuReading(at=WARNED - 1, utilization=50))
        store_samples(connection, use.cluster_id, WARNED - 1, {"c1": [sample]})
    assert service(lab).run("lab") == ""
    assert acts(ledger) == []
    with ledger.transaction() as connection:
        connection.execute(delete(gpu_samples))
    assert service(lab).run("lab") == "1 mailed"


@pytest.mark.parametrize(
    ("policy", "restarts", "signal"),
    [
        ({"on_timeout": "requeue"}, 0, "USR1"),
        ({"on_timeout": "hold"}, 30, "USR1"),
        ({"on_timeout": "requeue"}, 20, None),
        ({"on_preempt": "requeue"}, 19, "USR2"),
        ({"on_timeout": "fail", "on_preempt": "hold"}, 0, "USR2"),
        ({"on_oom": "requeue"}, 0, None),
    ],
)
def test_how_a_job_is_asked_for_its_checkpoint(
    policy: dict[str, str], restarts: int, signal: str | None
) -> None:
    slurm = FakeSlurm({"scontrol": lambda *_: survival_script(**policy)})
    request = read_checkpoint_request(slurm, make_job(7, restarts=restarts))
    assert request == (signal and (signal, GRACE))
    assert slurm.asked == [["scontrol", "write", "batch_script", "7", "-"]]
    assert read_checkpoint_request(slurm, make_job(8, batch=False)) is None
    assert len(slurm.asked) == 1  # salloc and srun have no script
