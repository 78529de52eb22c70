"""One round of the service: judge all running GPU jobs, and do what their policies say.

An act is recorded before it is done, and its outcome after it. An act that a killed service left
without an outcome is looked at again. It is done once more only where twice is as once. If much
time has passed, it counts as not done, and the job is judged again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from sqlalchemy import Connection, select

from slurmkit.config.files import load_section
from slurmkit.errors import BadInput, ControllerDown, LedgerError, SlurmError, SlurmTimeout
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.config import GpuUseSection, NotifySection
from slurmkit_accounting.gpu_use.exporters import EXPORTER, exporter_address, refuse_port_of_users
from slurmkit_accounting.gpu_use.recent import load_samples
from slurmkit_accounting.gpu_use.store import load_open_ids, load_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.plugins import notifier
from slurmkit_accounting.reclaim.acts import (
    Act,
    ActName,
    OpenAct,
    Outcome,
    had_mail,
    idle_since,
    load_keeps,
    load_open_acts,
    load_past_acts,
    record_act,
    record_outcome,
)
from slurmkit_accounting.reclaim.idleness import (
    Idleness,
    Step,
    make_curves,
    needed_gpus,
    next_step,
)
from slurmkit_accounting.reclaim.jobs import (
    CheckpointRequest,
    JobState,
    read_checkpoint_request,
    read_job_state,
    read_running_jobs,
)
from slurmkit_accounting.reclaim.notices import Follows, ReclaimNotices
from slurmkit_accounting.reclaim.policy import (
    Policies,
    ReclaimJob,
    ReclaimPolicy,
    choose_policy,
    load_policies,
)
from slurmkit_accounting.reclaim.recheck import keep_until, why_not_now

FRESH_SECONDS = 600
"""An act that was recorded longer ago and was not begun is not done any more."""
_MAILS_SINCE = 30 * 86400  # seconds; an older mail does not count as the first one
_LATE = 90  # seconds after its grace; then a job is requeued held as it is
_GIVE_UP = 3600  # seconds after its grace
_LATEST = 120  # seconds; an older sample is not looked at alone
_HIDDEN = "left, for Slurm does not show the job's script (is this account an operator of Slurm?)"
_PAUSE = 2.0  # seconds between two looks at a job that ends or comes back to the queue
_Result = tuple[Outcome, str]
"""What came of an act, and a remark."""
_Chosen = dict[tuple[int, int], tuple[ReclaimJob, str, ReclaimPolicy]]
"""By Slurm's own job id and the start of the run: the run, and the policy that decides about it."""
_STARTED_AGAIN: _Result = ("not done", "it started again before it could be held")
_NOT_BACK = "it did not come back to the queue"
_LONGEST_REMARK = 200  # characters
_REQUEUED: _Result = ("ended", "it was requeued by somebody else")


class _Round(NamedTuple):
    """What one round works with; `done` counts what was done."""

    ledger: Ledger
    cluster: int
    notices: ReclaimNotices
    policies: Policies
    done: Counter[str]


class _Plan(NamedTuple):
    """A step that is to be taken about a job."""

    job: ReclaimJob
    name: str
    policy: ReclaimPolicy
    step: Step
    found: Idleness


def refuse_forgeable_pages(policies: Policies) -> None:
    """Refuse policies that take jobs by pages which any job could have written.

    Raises:
        BadConfig: when a policy requeues or cancels, and users may open the exporters' port.
    """
    taking = [name for name, each in policies.items() if each.action in {"requeue", "cancel"}]
    if taking:
        harm = f"have the jobs of others taken by [reclaim.{taking[0]}]"
        section = load_section("gpu_use", GpuUseSection)
        exporter_address(section)  # raises for what is no address at all
        refuse_port_of_users(section, harm)


class Reclaimer:
    """Does what the policies say.

    Args:
        open_ledger: opens the ledger for writing.
        slurm: runs Slurm's commands, as an operator of Slurm.
        zone: time zone of the policies' hours of day.
        patience: seconds of a round in which jobs are watched that end or come back to the queue.
        clock: the time, epoch seconds.
        sleep: waits some seconds.
    """

    def __init__(
        self,
        open_ledger: Callable[[], AbstractContextManager[Ledger]],
        slurm: SlurmCommands,
        zone: Zone,
        *,
        patience: float,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._open_ledger = open_ledger
        self._slurm = slurm
        self._zone = zone
        self._patience = patience
        self._clock, self._sleep = clock, sleep
        # When this process signalled or cancelled a job, by the row of the act.
        self._asked: dict[int, float] = {}
        # Acts whose job did not come back, and was cancelled for that.
        self._given_up: set[int] = set()
        # Runs whose script says that they would not come back; a script never changes.
        self._without_request: set[tuple[int, int]] = set()

    def run(self, cluster: str) -> str:
        """Run one round on a cluster; return a line on what was done, empty if nothing was.

        Raises:
            BadConfig: when a policy is not valid, or a job could forge what it is judged by.
            BadInput: for an unknown notifier.
            SlurmError: when slurmctld does not answer.
            LedgerError: when the ledger cannot be written, or another process does this.
        """
        policies = load_policies()
        refuse_forgeable_pages(policies)
        if any(each.action != "report" for each in policies.values()):
            for name in load_section("notify", NotifySection).by:
                notifier(name)  # raises before anything is done
        with self._open_ledger() as ledger, hold_ledger_lock(ledger, "reclaim"):
            with ledger.transaction() as connection:
                number = connection.scalar(select(clusters.c.id).where(clusters.c.name == cluster))
            if number is None:  # nothing was ingested yet
                return ""
            notices = ReclaimNotices(cluster, self._zone)
            round_ = _Round(ledger, number, notices, policies, Counter())
            self._settle(round_)
            for plan in self._plans(round_):
                try:
                    self._carry_out(round_, plan)
                except BadInput:  # the configuration, which is that of all jobs
                    raise
                except (ValueError, ArithmeticError):  # of one job; the others are not to wait
                    round_.done["could not be judged"] += 1
            end = self._clock() + self._patience
            while self._settle(round_) and self._clock() + _PAUSE < end:
                self._sleep(_PAUSE)
            return ", ".join(f"{count} {what}" for what, count in sorted(round_.done.items()))

    def _plans(self, round_: _Round) -> list[_Plan]:
        """Judge all running jobs; return what is to be done about them."""
        at = self._clock()
        chosen: _Chosen = {}
        for job in read_running_jobs(self._slurm, round_.cluster, at):
            decided = choose_policy(round_.policies, job)
            if decided is not None:
                chosen[job.job_id_raw, job.start] = (job, *decided)
        self._without_request &= chosen.keys()
        with round_.ledger.transaction() as connection:
            for run in _working_runs(connection, round_.cluster, chosen, at):
                del chosen[run]
            ids = sorted({job for job, _ in chosen})
            uses = _uses_by_run(connection, round_.cluster, ids)
            past = load_past_acts(connection, round_.cluster, ids)
            keeps = load_keeps(connection, round_.cluster, ids)
            under_way = {
                (act.job.job_id_raw, act.job.start)
                for act in load_open_acts(connection, round_.cluster)
            }
        plans = []
        for run, (job, name, policy) in chosen.items():
            if run in under_way or run not in uses:
                continue
            found = next_step(
                make_curves(uses[run], policy),
                job,
                policy,
                past.get(run, ()),
                at=at,
                zone=self._zone,
                keep_until=keep_until(keeps, job, policy),
            )
            if found is not None:
                plans.append(_Plan(job, name, policy, *found))
        return plans

    def _carry_out(self, round_: _Round, plan: _Plan) -> None:
        """Record what is done about one job, and begin to do it."""
        try:
            action, request = self._action(plan)
        except (ControllerDown, SlurmTimeout):
            return
        except SlurmError:  # nothing is done while it is unknown whether the job survives
            round_.done[_HIDDEN] += 1
            return
        if action is None:
            return
        at = self._clock()
        with round_.ledger.transaction() as connection:
            if why_not_now(connection, plan.job, plan.policy, plan.found.begin, at):
                return
            act = record_act(
                connection,
                Act(
                    job=plan.job,
                    policy=plan.name,
                    action=action,
                    found=plan.found,
                    grace=0 if request is None else request.grace,
                    to_pi=_goes_to_pi(connection, plan, at),
                ),
            )
            if action == "report":
                record_outcome(connection, act.id, "reported", at)
                round_.done["reported"] += 1
        if action != "report":
            self._advance(round_, act)

    def _action(self, plan: _Plan) -> tuple[ActName | None, CheckpointRequest | None]:
        """Return what is done about a job, and how it is asked for its checkpoint.

        Raises:
            SlurmError: when Slurm does not show the job's script.
        """
        if plan.step != "take":
            return plan.step, None
        run = (plan.job.job_id_raw, plan.job.start)
        may_cancel = plan.policy.action == "cancel"
        if run in self._without_request and not may_cancel:
            return None, None
        request = read_checkpoint_request(self._slurm, plan.job)
        if request is not None:
            return "requeue", request
        self._without_request.add(run)
        return ("cancel" if may_cancel else None), None

    def _settle(self, round_: _Round) -> bool:
        """Go on with the acts that have no outcome yet; return whether some still have none."""
        with round_.ledger.transaction() as connection:
            acts = load_open_acts(connection, round_.cluster)
        finished = [self._advance(round_, act) for act in acts]
        return not all(finished)

    def _advance(self, round_: _Round, act: OpenAct) -> bool:
        """Do an act, or go on with it; return whether it has an outcome now."""
        work = {"mail": self._mail, "requeue": self._requeue, "cancel": self._cancel}
        try:
            result = work[act.action](round_, act)
            if result is None:
                return False
            outcome, why = result
            if outcome in {"held", "cancelled"} and not self._tell_user(round_, act, outcome):
                why = "the user could not be notified"
        except (SlurmError, LedgerError):  # slurmctld is away, or others send mail: later
            return False
        except BadInput:  # the configuration, which is that of all jobs
            raise
        except (ValueError, ArithmeticError) as error:  # of this job; the others are not to wait
            outcome, why = "not done", f"an error: {error}"[:_LONGEST_REMARK]
        with round_.ledger.transaction() as connection:
            record_outcome(connection, act.id, outcome, self._clock(), why)
        self._asked.pop(act.id, None)
        self._given_up.discard(act.id)
        round_.done[outcome] += 1
        return True

    def _tell_user(self, round_: _Round, act: OpenAct, outcome: Outcome) -> bool:
        """Tell the user what was done; return whether that has worked."""
        policy = round_.policies.get(act.policy) or ReclaimPolicy()
        return not round_.notices.tell(round_.ledger, act, outcome, policy.below)

    def _is_fresh(self, act: OpenAct) -> bool:
        return self._clock() - act.at <= FRESH_SECONDS

    def _mail(self, round_: _Round, act: OpenAct) -> _Result | None:
        """Warn the user."""
        if round_.notices.was_sent(round_.ledger, act):
            return "mailed", ""
        policy = round_.policies.get(act.policy)
        if policy is None or not self._is_fresh(act):
            return "not done", "the service was stopped before the mail was sent"
        why = round_.notices.warn(
            round_.ledger, act, policy, self._what_follows(round_, act, policy)
        )
        return ("not mailed", why) if why else ("mailed", "")

    def _what_follows(self, round_: _Round, act: OpenAct, policy: ReclaimPolicy) -> Follows:
        """Return what a policy does about GPUs that stay idle.

        Raises:
            SlurmError: when slurmctld does not answer.
        """
        if policy.action not in {"requeue", "cancel"}:
            return "nothing"
        try:
            comes_back = read_checkpoint_request(self._slurm, act.job) is not None
        except (ControllerDown, SlurmTimeout):
            raise
        except SlurmError:
            round_.done[_HIDDEN] += 1
            return "unknown"
        return "requeue" if comes_back else "cancel" if policy.action == "cancel" else "nothing"

    def _requeue(self, round_: _Round, act: OpenAct) -> _Result | None:
        """Ask for the checkpoint; once the job is back in the queue, hold it."""
        state = read_job_state(self._slurm, act.job)
        same_run = state.restarts == act.restarts and state.start == act.job.start
        result: _Result | None = None
        if state.is_over:
            by_us = act.id in self._given_up and state.state == "CANCELLED"
            result = ("cancelled", _NOT_BACK) if by_us else _ended(state)
        elif state.waits:
            result = self._hold(act, state)
        elif self._clock() - act.at > act.grace + _GIVE_UP:
            result = self._give_up(round_, act, is_running=state.state == "RUNNING" and same_run)
        elif state.state == "RUNNING":
            result = self._ask(round_, act) if same_run else _STARTED_AGAIN
        return result

    def _give_up(self, round_: _Round, act: OpenAct, *, is_running: bool) -> _Result | None:
        """Give up a job that did not come back to the queue; cancel it if the policy cancels.

        Only one that this process has asked: another one has had no chance.
        """
        policy = round_.policies.get(act.policy)
        may_cancel = policy is not None and policy.action == "cancel"
        if not (may_cancel and is_running and act.id in self._asked):
            return "not done", _NOT_BACK
        if self._clock() - act.at > act.grace + 2 * _GIVE_UP:
            return "not done", "it did not end"
        if act.id in self._given_up:
            return None
        why = self._why_not(round_, act, act.at + act.grace + _LATE)
        if why:
            return "not done", why
        result = self._run_once(act, ["scancel", "--state=RUNNING", act.job.job_id])
        if result is None:
            self._given_up.add(act.id)
        return result

    def _why_not(self, round_: _Round, act: OpenAct, since: float) -> str:
        """Return why nothing may be done about the job of an act any more; see `why_not_now`."""
        policy = round_.policies.get(act.policy)
        if policy is None:
            return "its policy is not in the configuration any more"
        with round_.ledger.transaction() as connection:
            return why_not_now(connection, act.job, policy, since, self._clock())

    def _hold(self, act: OpenAct, state: JobState) -> _Result | None:
        """Hold a job that came back to the queue, so that its user can release it."""
        if act.id not in self._asked and not self._is_fresh(act):
            return _REQUEUED
        if state.is_held:
            return "held", ""
        # Not `hold`: what an operator holds, its user could not release.
        self._slurm.run(["scontrol", "uhold", act.job.job_id])
        return None

    def _ask(self, round_: _Round, act: OpenAct) -> _Result | None:
        """Ask a running job for its checkpoint; requeue it held if it does not come back."""
        asked = self._asked.get(act.id)
        if asked is not None:
            if self._clock() - asked > act.grace + _LATE:
                # Before that, its GPUs may have worked for the checkpoint.
                why = self._why_not(round_, act, asked + act.grace)
                if why:
                    return "not done", why
                self._asked[act.id] = self._clock()
                self._slurm.run(["scontrol", "requeuehold", act.job.job_id])
            return None
        if not self._is_fresh(act):
            return "not done", "the service was stopped before the job was asked for its checkpoint"
        request = read_checkpoint_request(self._slurm, act.job)
        if request is None:
            return "not done", "it would not come back to the queue any more"
        why = self._why_not(round_, act, act.window_begin)
        if why:
            return "not done", why
        argv = ["scancel", "--batch", f"--signal={request.signal}", act.job.job_id]
        return self._run_once(act, argv)

    def _cancel(self, round_: _Round, act: OpenAct) -> _Result | None:
        """Cancel the job, and see that it ends."""
        state, asked = read_job_state(self._slurm, act.job), act.id in self._asked
        result: _Result | None = None
        if state.is_over:
            by_us = asked or state.state == "CANCELLED"
            result = ("cancelled", "") if by_us else _ended(state)
        elif state.waits or state.restarts != act.restarts:
            result = _REQUEUED
        elif self._clock() - act.at > _GIVE_UP:
            result = "not done", "it did not end"
        elif state.state == "RUNNING" and not asked:
            if not self._is_fresh(act):
                return "not done", "the service was stopped before the job was cancelled"
            why = self._why_not(round_, act, act.window_begin)
            if why:
                return "not done", why
            result = self._run_once(act, ["scancel", "--state=RUNNING", act.job.job_id])
        return result

    def _run_once(self, act: OpenAct, argv: Sequence[str]) -> _Result | None:
        """Run a command that acts on a job; note that this process did.

        Raises:
            SlurmError: when slurmctld does not answer, so that it is not known whether it acted.
        """
        try:
            self._slurm.run(argv)
        except (ControllerDown, SlurmTimeout):
            raise
        except SlurmError as error:
            return "not done", str(error)
        self._asked[act.id] = self._clock()
        return None


def _ended(state: JobState) -> _Result:
    return "ended", f"it ended by itself: {state.state or 'gone'}"


def _working_runs(
    connection: Connection, cluster: int, chosen: _Chosen, at: float
) -> list[tuple[int, int]]:
    """Return the runs whose GPUs work by their latest samples.

    So their curves need not be loaded; nor is a job touched that has just begun to work, which the
    last point of a long run's curve does not show yet.
    """
    latest = {
        sample.use_id: sample.reading.utilization
        for sample in load_samples(connection, at - _LATEST, cluster=cluster)
    }
    working: Counter[tuple[int, int]] = Counter()
    ids = load_open_ids(connection, cluster, EXPORTER, {job for job, _ in chosen})
    for (job, start, _, _), use_id in ids.items():
        percent = latest.get(use_id)
        if (job, start) in chosen and percent is not None:
            working[job, start] += percent >= chosen[job, start][2].below
    return [
        run
        for run, count in working.items()
        for job, _, policy in [chosen[run]]
        if job.gpus - count < needed_gpus(job, policy)
    ]


def _uses_by_run(
    connection: Connection, cluster: int, job_ids: Collection[int]
) -> dict[tuple[int, int], list[GpuUse]]:
    """Load what exporters say of the GPUs of running jobs, by Slurm's own job id and start."""
    found: dict[tuple[int, int], list[GpuUse]] = defaultdict(list)
    for use in load_uses(connection, job_ids=job_ids) if job_ids else ():
        if use.cluster_id == cluster and use.source == EXPORTER:
            found[use.job, use.start].append(use)
    return found


def _goes_to_pi(connection: Connection, plan: _Plan, at: float) -> bool:
    """Return whether the PI is notified, too."""
    if plan.step == "report" or plan.policy.to_pi != "second":
        return plan.step != "report" and plan.policy.to_pi == "always"
    job = plan.job
    begin: float | None = plan.found.begin
    if plan.step == "take":
        begin = idle_since(connection, job)  # its warning, and those sent with it, do not count
    if begin is None:
        return False
    return had_mail(connection, job.cluster_id, job.user, at - _MAILS_SINCE, begin)
