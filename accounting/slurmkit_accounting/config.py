"""The ledger's sections of the configuration.

`[ledger]` and `[ldap]` say where the data is and comes from. `[ledger.service]` and
`[ledger.schedule]` are for the site's service, `[gpu_use]` for what GPUs really do, `[notify]`,
`[mail]`, `[webhook]` and `[job_mail]` for notices. Passwords come from files or the environment,
never from the command line.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal, TypeAlias

import msgspec

from slurmkit.config.files import read_secret_file
from slurmkit.errors import BadConfig

ServerTimeout = Annotated[int, msgspec.Meta(ge=1, le=3600)]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]  # the largest size in LDAP, RFC 2696

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
PASSWORD_VARIABLE = "SLURMKIT_LDAP_PASSWORD"  # noqa: S105 - a name
SampleInterval = Annotated[int, msgspec.Meta(ge=1, le=3600)]
SampleDeadline = Annotated[float, msgspec.Meta(gt=0, le=60)]
CurveDays = Annotated[int, msgspec.Meta(ge=1, le=36500)]
ClientTimeout = Annotated[int, msgspec.Meta(ge=1, le=86400)]
LedgerMinutes = Annotated[int, msgspec.Meta(ge=0, le=1440)]
ArrayHours = Annotated[int, msgspec.Meta(ge=1, le=720)]

BUDGETS_LAST_RELEASE = (
    "This release is the last one that reads budgets.toml. To take its budgets over as allocations,"
    " an operator runs: slurmkit allocation import"
)
"""What the report, its notices and the TUI say where they show budgets of the file."""


class LedgerSection(msgspec.Struct, frozen=True):
    """`[ledger]`: the database and its files.

    Attributes:
        db: URL of the database; empty for the SQLite file under $XDG_DATA_HOME.
        budgets: file of the PIs' budgets; empty for budgets.toml next to a configuration file.
        overrides: file with PIs of accounts and users; it takes precedence over all other sources.
    """

    db: str = ""
    budgets: str = ""
    overrides: str = ""


class AllocationSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[allocation]`: how Slurm enforces allocations.

    Attributes:
        enforce: what `slurmkit allocation apply` sets GrpTRESMins on: `association` (of the
            account) or `qos` (a QOS with NoDecay for each holder); empty: nothing.
        qos: name of the QOS; `{name}` stands for the account, PI or project, `{kind}` for
            `account`, `pi` or `project`.
        at_end: what becomes of a job beyond what is left: `hold` lets it wait, `refuse` does not
            take it if it was larger than what was left at the last apply (only with `qos`), `lower`
            moves it to the first QOS of `free_qos` at the next apply (only with `qos`), `warn` sets
            no limit.
        free_qos: QOS whose jobs no allocation pays for.
    """

    enforce: Literal["", "association", "qos"] = ""
    qos: str = "alloc_{name}"
    at_end: Literal["hold", "refuse", "lower", "warn"] = "hold"
    free_qos: tuple[str, ...] = ()


class ProjectSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[project.NAME]`: a project that may have an allocation.

    Attributes:
        accounts: Slurm accounts whose use counts for the project.
    """

    accounts: tuple[str, ...] = ()


class LdapSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[ldap]`: the directory that people are read from, and the names of its attributes.

    Attributes:
        uri: `ldap://HOST[:PORT]` or `ldaps://HOST[:PORT]`. Of several, separated by blanks, the
            first that answers is used.
        starttls: whether an ldap:// connection is encrypted; false sends everything in clear.
        ca_file: PEM file of the CA that signed the server's certificate; empty for the system's.
        bind_dn: DN to log in as; empty for anonymous.
        bind_password_file: file with the password of `bind_dn`, not readable by others.
        people_base: subtree with the people.
        groups_base: subtree with the research groups.
        timeout: seconds to wait for a connection, and for each answer.
        page_size: entries asked for at a time.
        ignore_referrals: whether to leave out entries for which the server refers to another
            server. Otherwise a referral is an error: the directory is not read in full.
        max_vanish: share of the known people, or groups, that may vanish from the directory at
            once. A sync in which more vanish is not applied, unless it is forced.
        people_filter: which entries under `people_base` are people.
        groups_filter: which entries under `groups_base` are groups.
        id_attribute: immutable id of an entry; stays the same when the entry is renamed.
        username_attribute: the login name.
        uid_attribute: the numeric user id.
        name_attribute: the display name.
        mail_attribute: the mail address.
        department_attribute: the department.
        expire_attribute: when the account expires: in days since 1970, or as AD's accountExpires.
        group_name_attribute: equal to the group's Slurm account.
        members: how membership is stored. `dn`: a group lists the DNs of its members. `username`:
            a group lists their user names. `member_of`: people and groups list the DNs of their
            groups.
        member_attribute: the members of a group: `member`, `uniqueMember` or `memberUid`.
        member_of_attribute: the groups that a person or group is in.
        owner_attribute: DN or user name of the group's PI.
    """

    uri: str = ""
    starttls: bool = True
    ca_file: str = ""
    bind_dn: str = ""
    bind_password_file: str = ""
    people_base: str = ""
    groups_base: str = ""
    timeout: ServerTimeout = 10
    page_size: PageSize = 500
    ignore_referrals: bool = False
    max_vanish: Fraction = 0.1
    people_filter: str = "(objectClass=posixAccount)"
    groups_filter: str = "(objectClass=groupOfNames)"
    id_attribute: str = "entryUUID"
    username_attribute: str = "uid"
    uid_attribute: str = "uidNumber"
    name_attribute: str = "cn"
    mail_attribute: str = "mail"
    department_attribute: str = "departmentNumber"
    expire_attribute: str = "shadowExpire"
    group_name_attribute: str = "cn"
    members: Literal["dn", "username", "member_of"] = "dn"
    member_attribute: str = "member"
    member_of_attribute: str = "memberOf"
    owner_attribute: str = "owner"


class MailSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[mail]`: the mail server, and the sender of mail.

    Attributes:
        host: name of the SMTP server; empty to send no mail.
        port: 25, 587 for submission, 465 with `tls`.
        security: `starttls` (verified), `tls` from the first byte (verified), or `none`, which
            sends everything unencrypted.
        ca_file: PEM file of the CA that signed the server's certificate; empty for the system's.
        user: user name to log in with; empty for no login.
        password_file: file with the password of `user`, not readable by others.
        sender: the address mail comes from.
        reply_to: the address replies go to; empty for the sender.
        timeout: seconds to wait for the server.
    """

    host: str = ""
    port: Port = 25
    security: Literal["starttls", "tls", "none"] = "starttls"
    ca_file: str = ""
    user: str = ""
    password_file: str = ""
    sender: str = ""
    reply_to: str = ""
    timeout: ServerTimeout = 30


class WebhookSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[webhook]`: where notices are sent as JSON.

    Attributes:
        url: `https://...`; its certificate is verified.
        secret_file: file with the secret that signs each notice, not readable by others.
        ca_file: PEM file of the CA that signed the server's certificate; empty for the system's.
        timeout: seconds to wait for the server.
    """

    url: str = ""
    secret_file: str = ""
    ca_file: str = ""
    timeout: ServerTimeout = 30


class ColdfrontSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[coldfront]`: the ColdFront that allocations are read from.

    Attributes:
        url: `https://...` of its first page; its certificate is verified.
        token_file: file with the token of a user of ColdFront who may see all allocations, not
            readable by others.
        ca_file: PEM file of the CA that signed the server's certificate; empty for the system's.
        hours: the attribute of an allocation that has its hours, and gets its usage.
        unit: `gpu` or `billing`: what these hours are.
        timeout: seconds to wait for an answer.
    """

    url: str = ""
    token_file: str = ""
    ca_file: str = ""
    hours: str = "Accelerator Usage (Hours)"
    unit: Literal["gpu", "billing"] = "gpu"
    timeout: ServerTimeout = 30


class NotifySection(msgspec.Struct, frozen=True, kw_only=True):
    """`[notify]`: how notices are sent, and to whom.

    Attributes:
        by: notifiers, by name: `mail`, `webhook`, or a site's own.
        budgets: addresses that get every notice of a budget, in addition to its PI.
    """

    by: tuple[str, ...] = ("mail",)
    budgets: tuple[str, ...] = ()


class JobMailSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[job_mail]`: the mails about jobs that the service sends in place of Slurm.

    Attributes:
        spool: folder in which slurmkit-mail, Slurm's MailProg, leaves its events; empty: the
            service sends no mails about jobs.
        by: notifiers, by name: `mail`, `webhook`, or a site's own.
        ledger_minutes: a mail waits so long for the ledger to have the end of the job, then it is
            sent without the job's use and cost.
        array_hours: a mail about an array waits so long for its last task, then it is sent with
            what has ended by then.
    """

    spool: str = ""
    by: tuple[str, ...] = ("mail",)
    ledger_minutes: LedgerMinutes = 30
    array_hours: ArrayHours = 24


LogFormat: TypeAlias = Literal["text", "json"]


class ServiceSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[ledger.service]`: the address of the site's ledger service, and who may see what.

    Attributes:
        url: for clients, `http://HOST:PORT` of the service, or `unix:/PATH` of its socket on the
            same host; reports ask it unless --db is given.
        user: the account the service runs as, by name or uid; only it can read a query, and
            clients take answers from nobody else.
        auth: for clients, what certifies who asks over http or https: `munge`, or `jwt`: a token of
            Slurm's auth/jwt, for sites without MUNGE; then the URL is `https://HOST`.
        jwt_socket: for the service, the Unix socket on which the site's web server hands over
            queries with tokens; empty for none.
        jwt_key: for the service, the file of the same name in slurm.conf's AuthAltParameters.
        jwks: likewise, where an identity provider signs tokens.
        jwt_user_claim: the claim with the user's name: userclaimfield of AuthAltParameters.
        timeout: seconds a client waits for an answer.
        listen: for the service, the address it answers queries on: `HOST:PORT`, where MUNGE
            certifies who asks, or `unix:/PATH`, where the kernel does. Of several, separated by
            blanks, it answers on each.
        monitor: for the service, the address of /health and /metrics.
        log: for the service, the form of its log: `text`, or `json` with the field names of the
            Elastic Common Schema.
        operators: user names that see everything; so do Slurm's operators and administrators.
        operator_groups: groups of the operating system whose members see everything.
        stale_after: /health fails when the last successful ingest is older, in seconds.
        people_stale_after: /health fails when people were last read longer ago, in seconds.
        metrics_by_user: whether metrics name users.
        totals_for_everybody: whether everybody sees how many GPUs of each type were held and used
            in each hour, as in the curve of `slurmkit tui`, and how long jobs waited that few
            users ran. It names nobody.
    """

    url: str = ""
    user: str = "slurmkit"
    auth: Literal["munge", "jwt"] = "munge"
    jwt_socket: str = ""
    jwt_key: str = ""
    jwks: str = ""
    jwt_user_claim: str = "sun"
    timeout: ClientTimeout = 60
    listen: str = "127.0.0.1:6830"
    monitor: str = "127.0.0.1:6831"
    log: LogFormat = "text"
    operators: tuple[str, ...] = ()
    operator_groups: tuple[str, ...] = ()
    stale_after: int = 3 * 3600
    people_stale_after: int = 3 * 86400
    metrics_by_user: bool = False
    totals_for_everybody: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of `listen`; without any query an empty one, where nothing can listen."""
        return tuple(self.listen.split()) or (() if self.jwt_socket else ("",))


class ScheduleSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[ledger.schedule]`: when the service runs each task, as five cron fields; empty for never.

    Attributes:
        timezone: time zone of these times and of the months closed and mailed; empty for the
            host's.
        ingest: reads new and changed jobs from sacct.
        sweep: reads all of the last 40 days from sacct again, for late corrections.
        people: reads people and groups from the directory.
        budgets: sends notices of budgets that are nearly or completely used up.
        close: closes the previous month.
        mail: mails each PI the report of the previous month.
        digest: sends the mails about jobs to people who want one a day (`[job_mail]`).
    """

    timezone: str = ""
    ingest: str = "*/10 * * * *"
    sweep: str = "30 3 * * sun"
    people: str = "20 * * * *"
    budgets: str = ""
    close: str = ""
    mail: str = ""
    digest: str = "0 7 * * *"


class GpuUseSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[gpu_use]`: the source of what GPUs really do, and how long the service stores it.

    Attributes:
        source: `exporters`: the service reads `slurmkit gpu-exporter` on the nodes of running GPU
            jobs. `prometheus`, or another plugin of `slurmkit.gpu_metrics` that keeps old samples:
            it is asked for the running jobs, if it can be, and for each run that has ended. Empty:
            nothing is read.
        url: address of the exporter of a node; `{node}` stands for the name of the node. With
            plain http on a port from 1024 on, a job could answer in the exporter's place; then
            there is no token, and no policy `[reclaim.NAME]` with `requeue` or `cancel`.
        token_file: file with the exporters' bearer token, not readable by others.
        interval: seconds between two rounds. Of a plugin also the least time that a sample covers.
        deadline: seconds in which a node must answer; a node that does not costs only its own
            samples.
        ask_days: runs that ended longer ago are not asked for.
        curve_days: days for which the curve of each GPU is stored; summaries are never deleted.
    """

    source: str = ""
    url: str = "http://{node}:332/metrics"
    token_file: str = ""
    interval: SampleInterval = 30
    deadline: SampleDeadline = 5.0
    ask_days: CurveDays = 14
    curve_days: CurveDays = 400


def read_bind_password(section: LdapSection) -> str:
    """Read the password of `bind_dn`; empty for an anonymous bind.

    Raises:
        BadConfig: when there is none, or everybody on this machine can read its file.
    """
    if not section.bind_dn:
        return ""
    password = os.environ.get(PASSWORD_VARIABLE) or read_secret_file(
        "[ldap] bind_password_file", section.bind_password_file
    )
    if not password:  # LDAP treats a bind without a password as anonymous, and reports success
        raise BadConfig(
            "[ldap] bind_dn needs a password:"
            f" set bind_password_file, or {PASSWORD_VARIABLE} in the environment"
        )
    return password
