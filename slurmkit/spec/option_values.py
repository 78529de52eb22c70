"""The forms of the values of sbatch's options (sbatch(1), "OPTIONS")."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurmkit.errors import BadInput


class ValueForm(NamedTuple):
    """The form of an option's value; `pattern` None allows any text on one line."""

    pattern: re.Pattern[str] | None
    meaning: str = ""

    def fits(self, value: str) -> bool:
        """Tell whether a value has this form."""
        return self.pattern is None or self.pattern.fullmatch(value) is not None


def _form(pattern: str, meaning: str, flags: int = 0) -> ValueForm:
    return ValueForm(re.compile(pattern, re.ASCII | flags), meaning)


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
_NODES = _form(r"[\w.\-\[\],]+", "a list of nodes, e.g. c[1-4],c7")
_WHEN = _form(r"[\w:+\-. /]+", "a time, e.g. 2026-12-24T18:00, 16:00 or now+1hour")

OPTION_FORMS: dict[str, ValueForm] = {
    "job_name": ValueForm(None),
    "gres": _form(rf"{_NAME}(:[\w.\-]+){{0,2}}(,{_NAME}(:[\w.\-]+){{0,2}})*", "NAME[:TYPE]:COUNT"),
    "mem": _SIZE,
    "mem_per_cpu": _SIZE,
    "mem_per_gpu": _SIZE,
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
    "chdir": ValueForm(re.compile(r"/.*", re.DOTALL), "an absolute path"),
    "output": ValueForm(None),
    "error": ValueForm(None),
    "open_mode": _form("append|truncate", "one of append and truncate", re.IGNORECASE),
}

EXPORT_KEYWORDS = ("ALL", "NONE", "NIL")
"""Values of `--export` that pass on all of the submitter's environment, or nothing."""

_OPTION = re.compile(r"[a-z][a-z0-9\-]*", re.ASCII)
# They would change how sbatch runs, what it prints or whose job it is, not the job itself.
_REFUSED_OPTIONS = {
    "wrap": "give the command after --",
    "export": "use environment for variables of the job; ALL and NONE are passed on",
    "export-file": "use environment for variables of the job",
    **dict.fromkeys(
        "parsable test-only wait uid gid help usage version quiet verbose clusters cluster"
        " get-user-env ignore-pbs".split(),
        "it changes how sbatch itself runs, not the job",
    ),
}
# Options whose JobSpec field has another name.
_FIELD_NAMES = {
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "gpus-per-task": "gpus",
    "gpu-bind": "gpus.bind",
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
    if name == "export" and value in EXPORT_KEYWORDS:
        return
    if name in _REFUSED_OPTIONS:
        raise BadInput(f"options: {name} is not passed on to sbatch: {_REFUSED_OPTIONS[name]}")
    field = _FIELD_NAMES.get(name, name.replace("-", "_"))
    if field in _FIELDS or name in _FIELD_NAMES:
        raise BadInput(f"options: {name} has a field of its own; give it as {field!r}")
    if full := next((known for known in _LONG_OPTIONS if known.startswith(name)), None):
        raise BadInput(f"options: {name} is an abbreviation; write it in full, e.g. {full}")
    check_text(f"options: {name}", value)


_FIELDS = {
    *OPTION_FORMS,
    *"nodes ntasks ntasks_per_node cpus_per_task segment hold nice requeue".split(),
}


_LONG_OPTIONS = [*sorted(name.replace("_", "-") for name in _FIELDS), *_FIELD_NAMES]
