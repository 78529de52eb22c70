"""The tasks of the service's schedule: ingest, sweep, people, close, budgets, mails, GPU use."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from slurmkit.config.files import has_section, load_section
from slurmkit.errors import BadConfig, NotSent, SlurmkitError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.capabilities import read_slurm_config
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.config import (
    GpuUseSection,
    JobMailSection,
    LedgerSection,
    ScheduleSection,
)
from slurmkit_accounting.gpu_use.collect import GpuUseCollector, SampleSource
from slurmkit_accounting.gpu_use.exporters import Exporters, exporter_address
from slurmkit_accounting.gpu_use.history import GpuHistoryReader, load_gpu_history
from slurmkit_accounting.gpu_use.running import MetricsOfRunning
from slurmkit_accounting.gpu_use.store import link_ended_runs
from slurmkit_accounting.ingest.ingest import begin_of_reread, ingest
from slurmkit_accounting.ingest.steps import update_measured_use
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.notify.allocation_notices import notify_allocations
from slurmkit_accounting.notify.delivery import DeliveryOutcome
from slurmkit_accounting.notify.job_mail import JobMailer
from slurmkit_accounting.notify.monthly_mail import PastMonth, mail_month
from slurmkit_accounting.notify.notices import notify_budgets
from slurmkit_accounting.people.sync import read_people_sources, sync_people
from slurmkit_accounting.reclaim.policy import load_policies
from slurmkit_accounting.reclaim.reclaimer import Reclaimer, refuse_forgeable_pages
from slurmkit_accounting.service.schedule import ScheduledTask, every_seconds, parse_cron
from slurmkit_accounting.usage.closed_months import close_month

# More than a month, so that a whole month is read again after its end and before its closing.
SWEEP_SECONDS = 40 * 86400
EXPORTERS = "exporters"
_ASK_SECONDS = 60  # between two rounds of questions about ended runs
_MAIL_SECONDS = 30  # between two looks into the spool of mails about jobs
OpenLedger = Callable[[], AbstractContextManager[Ledger]]
StopCheck = Callable[[], None]
"""Raises `ServiceStopped` when the service shall stop; tasks call it between batches."""


class ServiceTasks:
    """The tasks of the schedule.

    Args:
        open_ledger: opens the ledger for writing.
        slurm: runs Slurm's commands.
        check: see `StopCheck`.
        zone: time zone of the scheduled times, and of the months closed and mailed.
    """

    def __init__(
        self, open_ledger: OpenLedger, slurm: SlurmCommands, check: StopCheck, zone: Zone
    ) -> None:
        self._open_ledger = open_ledger
        self._slurm = slurm
        self._check = check
        self._zone = zone
        self._collector: GpuUseCollector | None = None
        self._history: GpuHistoryReader | None = None
        self._reclaimer: Reclaimer | None = None
        self._cluster = ""

    def tasks(self, section: ScheduleSection) -> list[ScheduledTask]:
        """Return the tasks that have a time, in the order in which they run when several are due.

        Raises:
            BadConfig: when a time is not valid.
        """
        runs: dict[str, Callable[[list[str]], str]] = {
            "people": self.people,
            "ingest": self.ingest,
            "sweep": self.sweep,
            "close": self.close,
            "budgets": self.budgets,
            "mail": self.mail,
        }
        monthly, not_at_first = {"close", "mail"}, {"close", "mail", "sweep"}
        tasks = [
            ScheduledTask(
                name=name,
                when=parse_cron(name, text, self._zone),
                run=run,
                at_first=name not in not_at_first,
                monthly=name in monthly,
            )
            for name, run in runs.items()
            if (text := getattr(section, name)) and (name != "people" or _has_people_source())
        ]
        return [
            *tasks,
            *self._gpu_use_tasks(load_section("gpu_use", GpuUseSection)),
            *self._job_mail_tasks(load_section("job_mail", JobMailSection), section.digest),
            *self._reclaim_tasks(load_section("gpu_use", GpuUseSection)),
        ]

    def _reclaim_tasks(self, section: GpuUseSection) -> list[ScheduledTask]:
        """Return the task that looks after idle GPUs; it may wait for a job's checkpoint.

        Raises:
            BadConfig: when a policy is not valid, or nothing is read from running jobs.
        """
        policies = load_policies()
        if not policies:
            return []
        if section.source != EXPORTERS:
            raise BadConfig(
                f"[reclaim.{next(iter(policies))}] needs samples of running jobs: write"
                f' [gpu_use] source = "{EXPORTERS}", or take the policy out'
            )
        refuse_forgeable_pages(policies)
        self._reclaimer = Reclaimer(
            self._open_ledger,
            self._slurm,
            self._zone,
            patience=section.interval,
            sleep=self._sleep,
        )
        when = every_seconds(section.interval)
        return [ScheduledTask(name="reclaim", when=when, run=self.reclaim, apart=True)]

    def reclaim(self, _: list[str]) -> str:
        """Judge the GPUs of running jobs, and do what the policies say."""
        return "" if self._reclaimer is None else self._reclaimer.run(self._cluster_name())

    def _sleep(self, seconds: float) -> None:
        self._check()
        time.sleep(seconds)

    def _job_mail_tasks(self, section: JobMailSection, digest: str) -> list[ScheduledTask]:
        """Return the tasks that send the mails about jobs: at once, and once a day.

        Each has a thread of its own: a mail need not wait for an ingest of some minutes, nor for
        thousands of mails of the day.
        """
        if not section.spool:
            return []
        mailer, daily = (
            JobMailer(self._open_ledger, self._slurm, self._check, self._zone, section)
            for _ in range(2)
        )
        tasks = [
            ScheduledTask(
                name="job_mail",
                when=every_seconds(_MAIL_SECONDS),
                run=lambda _: mailer.run(),
                apart=True,
            )
        ]
        if digest:
            when = parse_cron("digest", digest, self._zone)
            tasks.append(
                ScheduledTask(
                    name="digest",
                    when=when,
                    run=lambda _: daily.digest(),
                    at_first=False,
                    own_thread=True,
                )
            )
        return tasks

    def _gpu_use_tasks(self, section: GpuUseSection) -> list[ScheduledTask]:
        """Return the task that reads exporters, or the two that ask a source that keeps samples.

        Each has a thread of its own: an ingest of some minutes must not leave a gap in all samples.
        """
        if not section.source:
            return []
        if section.source != EXPORTERS:
            metrics: Any = load_gpu_history(section.source)
            self._history = GpuHistoryReader(
                self._open_ledger,
                metrics,
                count_use=update_measured_use,
                interval=section.interval,
                ask_days=section.ask_days,
                keep_days=section.curve_days,
            )
            when = every_seconds(_ASK_SECONDS)
            tasks = [ScheduledTask(name="gpu_use", when=when, run=self.gpu_history, apart=True)]
            if not hasattr(metrics, "read_running"):
                return tasks
            return [*tasks, self._collecting("gpu_use_now", MetricsOfRunning(metrics), section)]
        return [self._collecting("gpu_use", Exporters(exporter_address(section)), section)]

    def _collecting(self, name: str, source: SampleSource, section: GpuUseSection) -> ScheduledTask:
        """Return the task that reads what the GPUs of running jobs do."""
        self._collector = GpuUseCollector(
            self._open_ledger,
            self._slurm,
            source,
            interval=section.interval,
            keep_days=section.curve_days,
        )
        when = every_seconds(section.interval)
        return ScheduledTask(name=name, when=when, run=self.gpu_use, apart=True)

    def gpu_use(self, _: list[str]) -> str:
        """Read a sample of each GPU that a job holds."""
        if self._collector is None:
            return ""
        return self._collector.run(self._cluster_name(), time.time())

    def _cluster_name(self) -> str:
        self._cluster = self._cluster or read_slurm_config(self._slurm).cluster_name or ""
        return self._cluster

    def gpu_history(self, _: list[str]) -> str:
        """Ask the site's metrics for the GPU use of runs that have ended."""
        if self._history is None:
            return ""
        failure = self._history.run(self._cluster_name(), int(time.time()), self._check)
        if failure:
            raise SlurmkitError(failure)
        return ""

    def ingest(self, _: list[str]) -> str:
        """Read new and changed jobs from sacct; stops between batches."""
        return self._ingest()

    def sweep(self, _: list[str]) -> str:
        """Read the last 40 days from sacct again, for jobs that were added or corrected late."""
        return self._ingest(SWEEP_SECONDS)

    def _ingest(self, again: int = 0) -> str:
        with self._open_ledger() as ledger:
            since = begin_of_reread(ledger, self._slurm, again) if again else None
            done = ingest(ledger, self._slurm, since=since, progress=lambda *_: self._check())
            with ledger.transaction() as connection:
                update_measured_use(connection, link_ended_runs(connection))
        rows = done.entered
        counts = (
            f"{rows.read} read, {rows.new} new, {rows.changed} changed, {rows.rejected} rejected"
        )
        outages = f"outages of nodes not read: {done.no_outages}" if done.no_outages else ""
        return "; ".join(filter(None, (counts, rows.reuse_warning(done.cluster), outages)))

    def people(self, _: list[str]) -> str:
        """Read people, groups, overrides and coordinators."""
        heard = read_people_sources(self._slurm)
        with self._open_ledger() as ledger:
            synced = sync_people(ledger, heard.data, max_vanish=heard.max_vanish)
        return f"{heard.read}; {len(synced.changes)} changes"

    def close(self, months: list[str]) -> str:
        """Close months; a month whose jobs are not all read yet fails, and is tried again."""
        with self._open_ledger() as ledger:
            for month in months:
                close_month(ledger, month, self._zone, int(time.time()))
        return ", ".join(months) or "no month"

    def budgets(self, _: list[str]) -> str:
        """Send notices of allocations and budgets; the task fails if one is not sent."""
        now = int(time.time())
        with self._open_ledger() as ledger:
            notices = [
                *notify_allocations(ledger, self._zone, now),
                *notify_budgets(ledger, self._zone, now),
            ]
        failed = [each for each in notices if each.outcome is DeliveryOutcome.FAILED]
        if failed:
            raise NotSent(f"{len(failed)} notices were not sent, the first: {failed[0].why}")
        return f"{sum(each.outcome is DeliveryOutcome.SENT for each in notices)} notices sent"

    def mail(self, months: list[str]) -> str:
        """Mail each PI their month; the task fails if a mail is not sent, and is tried again."""
        counts: Counter[DeliveryOutcome] = Counter()
        whys: list[str] = []
        with self._open_ledger() as ledger:
            for name in months:
                for result in mail_month(ledger, PastMonth(name, self._zone, int(time.time()))):
                    counts[result.outcome] += 1
                    if result.outcome is DeliveryOutcome.FAILED and result.pi.mail:
                        whys.append(f"{result.pi.name}: {result.why}")
                    self._check()
        if whys:
            raise NotSent(f"{len(whys)} mails were not sent, the first to {whys[0]}")
        summary = ", ".join(f"{number} {outcome.value}" for outcome, number in counts.items())
        return f"{', '.join(months) or 'no month'}: {summary or 'nobody to mail'}"


def _has_people_source() -> bool:
    """Return whether the configuration names a source of people."""
    return has_section("ldap") or bool(load_section("ledger", LedgerSection).overrides)
