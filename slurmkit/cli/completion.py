"""`slurmkit completion`, and the values that Tab offers, from cached cluster data alone."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Iterator

import click
from click.shell_completion import BashComplete, CompletionItem, get_completion_class
from click.types import StringParamType

from slurmkit.config.files import default_cluster_name
from slurmkit.config.paths import JOB_FOLDERS, recorded_job_ids
from slurmkit.config.plugins import plugins
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.formats.tres import Gres
from slurmkit.slurm.ssh.hosts import cluster_cache_key, load_cluster
from slurmkit.spec.option_values import EXPORT_KEYWORDS
from slurmkit.state.associations import SlurmdbdDetails, details_key
from slurmkit.state.cache import load_cached, local_cluster_key
from slurmkit.state.model import Capabilities

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_SLURMKIT_COMPLETE"
_COUNTS = (1, 2, 4, 8, 16)  # GPUs of one type to offer, as far as a node has so many
# Bash splits words at `=` and `:` (COMP_WORDBREAKS), as in `--gpus-per-node=a100:2`. This joins
# them, and takes what bash has already completed off each value. Behind `--` is a job's command,
# for which `_command_offset` of the package bash-completion knows more than bash.
_BASH = r"""%(complete_func)s() {
    local at
    for ((at = 1; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] || continue
        if declare -F _command_offset >/dev/null; then
            _command_offset $((at + 1))
        elif ((at + 1 == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}" | sort -u)
        else
            compopt -o default
        fi
        return
    done

    local IFS=$'\n' rest=$COMP_LINE words=() word blanks given type value completion response
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        blanks=${rest%%%%[![:blank:]]*}
        rest=${rest#"$blanks"}
        rest=${rest#"$word"}
        if [[ $blanks || ${#words[@]} -eq 0 ]]; then words+=("$word"); else words[-1]+=$word; fi
    done
    given=${words[-1]}
    [[ $word == [=:]* ]] || given=${given%%"$word"}
    [[ $given == --*=* ]] && given=${given#*=}

    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
        %(complete_var)s=bash_complete "$1")
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain) COMPREPLY+=("${value#"$given"}") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_JOB_ID_ARGUMENTS = ("job_id", "job_ids")
_OF_CLUSTER: dict[str, Callable[[Capabilities], Iterable[str]]] = {
    "partition": lambda cluster: (each.name for each in cluster.partitions),
    "node": lambda cluster: (each.name for each in cluster.nodes),
    "feature": lambda cluster: (name for each in cluster.nodes for name in each.features),
    "gpu": lambda cluster: (gres.type or "" for gres in _typed_gpus(cluster)),
    "gpu request": lambda cluster: (
        f"{gres.type}:{count}"
        for gres in _typed_gpus(cluster)
        for count in _COUNTS
        if count <= gres.count
    ),
    "license": lambda cluster: cluster.licenses,
}
_OF_USER: dict[str, Callable[[SlurmdbdDetails], Iterable[str]]] = {
    "qos": lambda details: (name for row in details.associations for name in row["QOS"].split(",")),
    "account": lambda details: (row["Account"] for row in details.associations if row["User"]),
    "reservation": lambda details: details.reservations,
}
NAME_OPTIONS = {
    "account": "account",
    "constraint": "feature",
    "exclude": "node",
    "gpu-type": "gpu",
    "gpus": "gpu request",
    "gpus-per-node": "gpu request",
    "gpus-per-socket": "gpu request",
    "gpus-per-task": "gpu request",
    "licenses": "license",
    "nodelist": "node",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
}
"""Options with the same meaning in every command -> the kind of names they take."""
_FIXED_VALUES: dict[str, Iterable[str]] = {
    "cpu-bind": ("none", "cores", "threads", "sockets", "ldoms"),
    "distribution": ("block", "cyclic", "block:block", "block:cyclic", "cyclic:block"),
    "export": EXPORT_KEYWORDS,
    "gres-flags": ("disable-binding", "enforce-binding"),
    "hint": ("compute_bound", "memory_bound", "multithread", "nomultithread"),
    "mem-bind": ("local", "none"),
    "open-mode": ("append", "truncate"),
}  # the values that every release of Slurm has; others are accepted, too
_PLUGIN_KINDS = {"backend": "backends", "container-runtime": "runtimes", "launch": "launchers"}


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print a shell script that completes slurmkit's commands and options on Tab.

    \b
    Examples:
      slurmkit completion bash > ~/.local/share/bash-completion/completions/slurmkit
      slurmkit completion zsh > "${fpath[1]}/_slurmkit"
      slurmkit completion fish > ~/.config/fish/completions/slurmkit.fish
    """
    completion = _JoinedWords if shell == "bash" else get_completion_class(shell)
    if completion is None:  # only if click drops a shell
        raise click.UsageError(f"click cannot complete for {shell}")
    click.echo(completion(click.Group(), {}, "slurmkit", VARIABLE).source())


class _JoinedWords(BashComplete):
    """Click's completion for bash with a script that joins the words that bash splits."""

    source_template = _BASH


def cached_names(kind: str, *, key: str | None = None) -> list[str]:
    """Return the names last seen, in order; none if nothing is cached.

    Args:
        kind: `partition`, `node`, `feature`, `gpu` (its types), `gpu request` (types with a
            count, as in `a100:2`), `license`; `qos` and `account` that this user may use;
            `reservation`.
        key: see `slurmkit.state.cache.load_capabilities`.
    """
    key = key or _key()
    names: Iterable[str] = ()
    if kind in _OF_USER:
        details = load_cached("details", details_key(key, _me()), SlurmdbdDetails)
        names = _OF_USER[kind](details) if details else ()
    elif kind in _OF_CLUSTER:
        capabilities = load_cached("capabilities", key, Capabilities)
        names = _OF_CLUSTER[kind](capabilities) if capabilities else ()
    return sorted({name for name in names if name})


def _typed_gpus(cluster: Capabilities) -> Iterator[Gres]:
    """Yield the GPUs of each node that have a type."""
    for node in cluster.nodes:
        yield from (gres for gres in node.gres if gres.name == "gpu" and gres.type)


def _key() -> str:
    """Return the key of the selected cluster, without asking it."""
    if not (name := default_cluster_name()):
        return local_cluster_key()
    try:
        return cluster_cache_key(name, load_cluster(name))
    except BadInput:
        return ""


def _me() -> str:
    """Return this user's login name; empty for a cluster over SSH, where it is not known."""
    if default_cluster_name():
        return ""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


class _NameType(StringParamType):
    """An option type: text for which Tab offers names. Other texts are accepted, too."""

    name = "text"

    def _known(self) -> Iterable[str]:
        """Return the names to offer."""
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin with the text so far."""
        del ctx, param
        return [CompletionItem(n) for n in self._known() if n.startswith(incomplete)]


class PluginNames(_NameType):
    """An option type: the name of a plugin.

    Args:
        kind: a key of `slurmkit.config.plugins.KINDS`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _known(self) -> Iterable[str]:
        return plugins(self._kind)


class FixedNames(_NameType):
    """An option type: one of some values that every release of Slurm has, or another text."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def _known(self) -> Iterable[str]:
        return self._names


class ImageNames(_NameType):
    """An option type: a container image that is imported, or in the catalogue."""

    def _known(self) -> Iterable[str]:
        from slurmkit.planning.containers import image_names

        try:
            return image_names()
        except SlurmkitError:  # Tab cannot show an error
            return ()


class RememberedJobIds(_NameType):
    """An option type: a job of which this machine has a record: an array, or a server's job."""

    def _known(self) -> Iterable[str]:
        ids = {job_id for folder in JOB_FOLDERS for job_id in recorded_job_ids(folder)}
        return sorted(ids, key=int, reverse=True)


class CachedNames(StringParamType):
    """An option type: names of something the cluster has, separated by commas.

    Args:
        kind: as `slurmkit.cli.completion.cached_names` takes it.
    """

    name = "names"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the text so far with each name that the last one could become."""
        del ctx, param
        before, comma, last = incomplete.rpartition(",")
        names = cached_names(self._kind)
        return [CompletionItem(before + comma + n) for n in names if n.startswith(last)]


def complete_from_cache(command: click.Command) -> click.Command:
    """Let Tab offer names, job ids and files for a command and its subcommands; return it."""
    for param in command.params:
        if param.name == "command":  # the first word may be a batch script
            param.type = click.Path()
        if param.type is not click.STRING:
            continue
        if isinstance(param, click.Option):
            param.type = _option_type((param.name or "").replace("_", "-"))
        elif param.name in _JOB_ID_ARGUMENTS:
            param.type = RememberedJobIds()
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        complete_from_cache(each)
    return command


def _option_type(name: str) -> StringParamType:
    """Return the type of an option with the names that Tab offers for it."""
    if name in NAME_OPTIONS:
        return CachedNames(NAME_OPTIONS[name])
    if name in _FIXED_VALUES:
        return FixedNames(*_FIXED_VALUES[name])
    if name in _PLUGIN_KINDS:
        return PluginNames(_PLUGIN_KINDS[name])
    return ImageNames() if name == "container-image" else StringParamType()
