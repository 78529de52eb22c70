"""The forms of the values of sbatch's options (sbatch(1), "OPTIONS")."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput
from slurmkit.formats.job_ids import check_job_id


class ValueForm(NamedTuple):
    """The form of an option's value; `pattern` None allows any text on one line.

    The pattern is compiled when a value is checked: a job has few of the options.
    """

    pattern: str | None
    meaning: str = ""
    flags: int = 0

    def fits(self, value: str) -> bool:
        """Tell whether a value has this form."""
        return self.pattern is None or re.fullmatch(self.pattern, value, self.flags) is not None


def _form(pattern: str, meaning: str, flags: int = 0) -> ValueForm:
    return ValueForm(pattern, meaning, re.ASCII | flags)


_NAME = r"[A-Za-z0-9_][\w.\-]*"
_LIST = _form(rf"{_NAME}(,{_NAME})*", "a Slurm name, or several with commas")
_ONE = _form(_NAME, "a Slurm name")
_SIZE = _form(r"\d+([KMGT]B?)?", "a size: a number with K, M, G or T, e.g. 64G", re.IGNORECASE)
_ID = r"\d+(_(\d+|\*))?(\+\d+)?"
_AFTER = rf"after(any|ok|notok|corr|burstbuffer)?:{_ID}(:{_ID})*"
_DEPENDENCY = rf"({_AFTER}|singleton)"
_RANGE = r"\d+(-\d+(:\d+)?)?"
_MAILS = (
    "NONE|BEGIN|END|FAIL|REQUEUE|ALL|INVALID_DEPEND|STAGE_OUT|TIME_LIMIT|TIME_LIMIT_90"
    "|TIME_LIMIT_80|TIME_LIMIT_50|ARRAY_TASKS"
)
_HINT = "(compute_bound|memory_bound|multithread|nomultithread)"
_NODES = _form(r"[\w.\-\[\],]+", "a list of nodes, e.g. c[1-4],c7")
_WHEN = _form(r"[\w:+\-. /]+", "a time, e.g. 2026-12-24T18:00, 16:00 or now+1hour")

OPTION_FORMS: dict[str, ValueForm] = {
    "job_name": ValueForm(None),
    "gres": _form(rf"{_NAME}(:[\w.\-]+){{0,2}}(,{_NAME}(:[\w.\-]+){{0,2}})*", "NAME[:TYPE]:COUNT"),
    "mem": _SIZE,
    "mem_per_cpu": _SIZE,
    "mem_per_gpu": _SIZE,
    "tmp": _SIZE,
    "hint": _form(
        rf"{_HINT}(,{_HINT})*",
        f"one of {_HINT.strip('()').replace('|', ', ')}",
        re.IGNORECASE,
    ),
    "time": ValueForm(None),
    "time_min": ValueForm(None),
    "partition": _LIST,
    "account": _ONE,
    "qos": _LIST,
    "reservation": _LIST,
    "constraint": _form(r"[\w.\-&|()*\[\],:=!]+", "features joined with & or |, e.g. a100&ib"),
    "licenses": _form(r"[\w.\-@/:,;|]+", "licences, e.g. matlab:2"),
    "nodelist": _NODES,
    "exclude": _NODES,
    "exclusive": _form(r"user|mcs|topo", "one of user, mcs and topo"),
    "requeue": _form("expedite", "expedite, the only value that --requeue may have"),
    "switches": _form(r"\d+(@[\d:\-]+)?", "COUNT[@MAX-TIME], e.g. 1@10:00"),
    "array": _form(rf"{_RANGE}(,{_RANGE})*(%\d+)?", "a list of indexes, e.g. 0-99%10"),
    "dependency": _form(
        rf"{_DEPENDENCY}((,{_DEPENDENCY})*|(\?{_DEPENDENCY})*)",
        "a dependency, e.g. afterok:12:13 or afterany:12,afterok:14",
    ),
    "begin": _WHEN,
    "deadline": _WHEN,
    "signal": _form(
        r"([RB]{1,2}:)?(SIG)?[A-Z0-9]+(@\d{1,5})?", "[B:]SIGNAL[@SECONDS]", re.IGNORECASE
    ),
    "mail_type": _form(
        rf"({_MAILS})(,({_MAILS}))*", f"one of {_MAILS.replace('|', ', ')}", re.IGNORECASE
    ),
    "mail_user": _form(r"[\w.+\-@,]+", "a mail address"),
    "comment": ValueForm(None),
    "chdir": ValueForm(r"/.*", "an absolute path", re.DOTALL),
    "output": ValueForm(None),
    "error": ValueForm(None),
    "open_mode": _form("append|truncate", "one of append and truncate", re.IGNORECASE),
}

_LEVEL = r"(\*|block|f?cyclic)"
_MEM_BIND = (
    r"(q|quiet|v|verbose|no|none|sort|nosort|local|rank|p|prefer|(map|mask)_mem:[\da-fx*,]+)"
)
_GRES_FLAG = "(disable-binding|enforce-binding|multiple-tasks-per-sharing|one-task-per-sharing)"
_OPPOSITE_FLAGS = (
    ("disable-binding", "enforce-binding"),
    ("multiple-tasks-per-sharing", "one-task-per-sharing"),
)
_COUNT = _form(r"\d{1,9}", "a whole number")

CPU_BIND_FORM = _form(
    r"((q|quiet|v|verbose),)?(q|quiet|v|verbose|no|none|rank(_ldom)?|(map|mask)_(cpu|ldom):"
    r"[\da-fx*,]+|sockets|cores|threads|ldoms|boards)(,one-thread-per-core)?",
    "one of none, cores, threads, sockets, ldoms, rank, map_cpu:LIST, mask_cpu:LIST",
    re.IGNORECASE,
)
"""The form of srun's `--cpu-bind`."""

PASSED_ON_FORMS: dict[str, ValueForm] = {
    "core-spec": _COUNT,
    "distribution": _form(
        rf"plane=[1-9]\d*|(\*|block|cyclic)(:{_LEVEL}){{0,2}}(,(no)?pack)?",
        "a distribution, e.g. block:cyclic or plane=4",
        re.IGNORECASE,
    ),
    "gres-flags": _form(
        rf"{_GRES_FLAG}(,{_GRES_FLAG})*",
        f"one of {_GRES_FLAG.strip('()').replace('|', ', ')}",
        re.IGNORECASE,
    ),
    "kill-on-invalid-dep": _form("yes|no", "yes or no", re.IGNORECASE),
    "mem-bind": _form(
        rf"{_MEM_BIND}(,{_MEM_BIND})*", "a binding, e.g. local or verbose,none", re.IGNORECASE
    ),
    "mem-update": _form(
        r"[1-9]\d{0,4}@[\d:\-]+", "PERCENT@TIME, e.g. 20@10 for a fifth more after ten minutes"
    ),
    "thread-spec": _COUNT,
    "wckey": _form(r"[^\s,]+", "one word without a comma"),
}
"""The forms of options that have no field, but whose values are checked."""

EXPORT_KEYWORDS = ("ALL", "NONE", "NIL")
"""Values of `--export` that pass on all of the submitter's environment, or nothing."""

SBATCH_OPTIONS = frozenset(
    """
    account acctg-freq array autocomplete batch bb bbf begin chdir cluster cluster-constraint
    clusters comment consolidate-segments constraint container container-id container-type context
    contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
    dependency distribution error exclude exclusive export export-file external extra
    extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket
    gpus-per-task gres gres-flags help hint hold ignore-pbs input job-name kill-on-invalid-dep
    licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mem-update mincpus
    network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket ntasks-per-tres oom-kill-step open-mode output overcommit
    oversubscribe parsable partition power prefer priority profile propagate qos quiet reboot
    requeue reservation resources resv-ports segment signal sockets-per-node spread-job
    spread-segments stepmgr switches tasks-per-node test-only thread-spec threads-per-core time
    time-min tmp tres-bind tres-per-task uid usage use-min-nodes verbose version wait
    wait-all-nodes wckey wrap
    """.split()
)
"""The long options of sbatch itself, of Slurm 22.05 to 26.05. A site's plugins may add others."""

_OPTION = re.compile(r"[a-z][a-z0-9\-]*", re.ASCII)
_EXPORT_NAMES = re.compile(r"[A-Za-z_]\w*(,[A-Za-z_]\w*)*", re.ASCII)
# They would change how sbatch runs, what it prints or whose job it is, not the job itself.
_REFUSED_OPTIONS = {
    "wrap": "give --wrap itself on the command line, or the command after --",
    "export-file": "use environment for variables of the job",
    "cpu-bind": "it is an option of srun; give it as cpu-bind of launch",
    "external": "such a job runs nothing; submit it with sbatch",
    **dict.fromkeys(
        "parsable test-only wait uid gid help usage version quiet verbose clusters cluster"
        " ignore-pbs autocomplete".split(),
        "it changes how sbatch itself runs, not the job",
    ),
}
_EXPORT_MEANING = (
    "ALL, NONE, NIL, or names with commas; a variable with a value goes into environment"
)
# Options whose JobSpec field has another name.
_FIELD_NAMES = {
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "gpus-per-task": "gpus",
    "gpus-per-socket": "gpus",
    "gpu-bind": "gpus.bind",
    "extra-node-info": "sockets_per_node, cores_per_socket and threads_per_core",
    "tasks-per-node": "ntasks_per_node",
    "no-requeue": "requeue",
}


def check_text(what: str, value: str) -> None:
    """Refuse text that would break out of its line of a script.

    Raises:
        BadInput: for a line break, a NUL or text that is not UTF-8.
    """
    if any(char in value for char in "\n\r\0") or any("\ud800" <= c <= "\udfff" for c in value):
        raise BadInput(f"{what} must be UTF-8 text without a line break or NUL: {value!r}")


def check_passed_through(name: str, value: str) -> None:
    """Refuse an option that may not be passed on to sbatch as it is.

    Raises:
        BadInput: naming the field to use instead, where there is one.
    """
    if not _OPTION.fullmatch(name):
        near = name.lstrip("-").replace("_", "-").lower()
        raise BadInput(
            f"options: {name!r} is not the name of a long option; did you mean {near!r}?"
        )
    if name in _REFUSED_OPTIONS:
        raise BadInput(f"options: {name} is not passed on to sbatch: {_REFUSED_OPTIONS[name]}")
    field = _FIELD_NAMES.get(name, name.replace("-", "_"))
    if field in _FIELDS or name in _FIELD_NAMES:
        raise BadInput(f"options: {name} has a field of its own; give it as {field!r}")
    full = next((known for known in _LONG_OPTIONS if known.startswith(name)), None)
    if full and name not in SBATCH_OPTIONS:
        raise BadInput(f"options: {name} is an abbreviation; write it in full, e.g. {full}")
    check_text(f"options: {name}", value)
    _check_value(name, value)


def _check_value(name: str, value: str) -> None:
    """Check the value of an option without a field, as far as its form is known."""
    if name == "export" and value not in EXPORT_KEYWORDS and not _EXPORT_NAMES.fullmatch(value):
        raise BadInput(f"options: export {value!r} is not {_EXPORT_MEANING}")
    if name == "distribution" and re.match("arbitrary|hostfile", value, re.IGNORECASE):
        raise BadInput(
            "--distribution=arbitrary: sbatch does not take it with --nodes, which slurmkit always"
            " gives; submit this job with sbatch"
        )
    for pair in _OPPOSITE_FLAGS:
        if name == "gres-flags" and set(pair) <= {*value.lower().split(",")}:
            raise BadInput(f"--gres-flags={value}: {' and '.join(pair)} contradict each other")
    form = PASSED_ON_FORMS.get(name)
    if form is not None and not form.fits(value):
        raise BadInput(f"--{name} {value!r} is not {form.meaning}")


_FIELDS = {
    *OPTION_FORMS,
    *"nodes ntasks ntasks_per_node cpus_per_task segment hold nice".split(),
    *"cpus_per_gpu ntasks_per_gpu ntasks_per_socket ntasks_per_core mincpus".split(),
    *"sockets_per_node cores_per_socket threads_per_core".split(),
    *"overcommit spread_job use_min_nodes".split(),
}


_LONG_OPTIONS = [*sorted(name.replace("_", "-") for name in _FIELDS), *_FIELD_NAMES]


DEPENDENCY_TYPES = ("after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok")
"""Types of dependency on other jobs; `singleton` names no job and is not one of them."""


class HasParts(Protocol):
    """A job handle, e.g. `slurmkit.jobs.job.Job`."""

    @property
    def id(self) -> str:
        """The Slurm job id, or several ids."""
        ...

    @property
    def parts(self) -> Iterable[HasParts]:
        """The Slurm jobs that it consists of."""
        ...


def format_dependency(jobs: Iterable[HasParts | str | int], kind: str, minutes: int = 0) -> str:
    """Write one dependency, e.g. `afterok:12:13` for two jobs.

    Args:
        jobs: handles or ids; at least one.
        kind: one of `DEPENDENCY_TYPES`.
        minutes: to wait after their start; for `after` only.

    Raises:
        BadInput: for a malformed job id, an unknown kind, or minutes with another kind.
    """
    if kind not in DEPENDENCY_TYPES:
        raise BadInput(
            f"unknown kind of dependency {kind!r}; {did_you_mean(kind, list(DEPENDENCY_TYPES))}"
        )
    if minutes and kind != "after":
        raise BadInput(
            f"{kind} takes no minutes: Slurm counts them from the start of a job; use kind='after'"
        )
    if minutes < 0:
        raise BadInput(f"the minutes to wait must be at least 0, not {minutes}")
    ids = [job_id for job in jobs for job_id in _ids(job)]
    if not ids:
        raise BadInput("the dependency names no job; give at least one job to wait for")
    if kind == "aftercorr" and len(ids) > 1:
        raise BadInput(f"aftercorr takes one array, not {', '.join(ids)}")
    more = f"+{minutes}" if minutes else ""
    return ":".join([kind, *(f"{job_id}{more}" for job_id in ids)])


def join_dependencies(own: str | None, more: str) -> str:
    """Join two dependencies so that both must be met.

    Raises:
        BadInput: when the first is satisfied by any one of several (`?`); Slurm cannot join that.
    """
    if own and "?" in own:
        raise BadInput(f"dependency {own} waits for any of several jobs; Slurm cannot add {more}")
    return f"{own},{more}" if own else more


def _ids(job: HasParts | str | int) -> Iterator[str]:
    if isinstance(job, str | int):
        yield check_job_id(str(job))
    else:
        yield from (check_job_id(part.id) for part in job.parts)
