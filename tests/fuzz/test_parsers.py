"""Every parser of outside text: a value or an error raised on purpose; round trips are equal."""

from __future__ import annotations

import io
import random
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from fuzzing import fuzz, mutated, odd_text, one_of, random_spec
from msgspec.structs import replace
from slurmkit_accounting.calendar import find_zone, month_span
from slurmkit_accounting.people.ldap_entries import normalise_dn
from slurmkit_accounting.sacct.columns import RowLayout
from slurmkit_accounting.sacct.query import SACCT_FIELDS, parse_batches

from slurmkit.errors import SlurmkitError
from slurmkit.formats import durations, job_ids, memory, scontrol, tres
from slurmkit.formats.display import printable
from slurmkit.jobs.info import parse_gpu_indices
from slurmkit.jobs.run_history import parse_history
from slurmkit.slurm.records import split_records
from slurmkit.slurm.ssh.known_hosts import load_host_keys
from slurmkit.spec import jobfile
from slurmkit.spec.containers import Mount
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.images import Image
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.sbatch_options import option_lines, option_values, parse_options, per_socket_text
from slurmkit.spec.sweep import parse_sweep_word
from slurmkit.state import capabilities, gres, nodes
from slurmkit.state.queue_rows import QUEUE_FIELDS, parse_queue

_RECORDED = Path(__file__).parents[1] / "recorded" / "24.11"
_NODES = (_RECORDED / "scontrol-nodes.txt").read_text("utf-8")
_MARK = "\x1fAbCd12"
_LAYOUT = RowLayout(SACCT_FIELDS)
_TRES = ("cpu=4,mem=8G,node=1,billing=8,gres/gpu=2,gres/gpu:a100=2", "gres/shard=7", "N/A", "")
_TIMES = ("10", "1:00:00", "1-2", "1-02:03:04", "2h 30m", "UNLIMITED", "00:02.357", "INVALID")
_SIZES = ("8G", "500M", "1.50T", "1024", "0", "16Gn", "4Mc")
_JOB_IDS = ("12", "12_3", "12_[4-9]", "12_[1,3-5%2]", "12+1", "12.batch", "12_[0-1000000]")
_NODE_LISTS = ("c1", "c[1-2]", "c[01-10,12]d[1-3]", "a,b[1-2],c", "19[1-65535]", "c[1-2]d[3-4]10")
_JOB_LINES = (
    "JobId=7 JobName=x\n     Nodes=c[1-2] CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0-1)\n",
    "JobId=8\n     Nodes=c1 CPU_IDs=0 Mem=1 GRES=shard:h100:7(3/4,4/4,-/4)\n",
    "JobId=9\n     Nodes=c[1-2]d[3-4]1000000000000 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)\n",
)
_VALUE = (SlurmkitError, ValueError)  # where the docstring, or its caller, speaks of ValueError

# Parser, examples, the errors it may raise.
_PARSERS: tuple[tuple[Callable[[str], Any], tuple[str, ...], tuple[type[Exception], ...]], ...] = (
    (durations.parse_time_limit, _TIMES, (SlurmkitError,)),
    (durations.parse_elapsed, _TIMES, ()),
    (durations.parse_elapsed_milliseconds, _TIMES, ()),
    (durations.reformat_elapsed, _TIMES, ()),
    (memory.parse_bytes, _SIZES, ()),
    (lambda text: memory.parse_mib(text, rounding="up"), _SIZES, ()),
    (scontrol.parse_amount, _SIZES, _VALUE),
    (scontrol.parse_minutes, _TIMES, _VALUE),
    (tres.parse_tres, _TRES, ()),
    (tres.gpu_count, _TRES, _VALUE),
    (tres.gpu_types, _TRES, _VALUE),
    (tres.gpu_parts, _TRES, _VALUE),
    (scontrol.parse_tres_counts, _TRES, _VALUE),
    (scontrol.parse_gres, ("gpu:a100:2(S:0-1),shard:8", "gpu:2", "(null)"), _VALUE),
    (gres.parse_gres_uses, ("gpu:a100:2(IDX:0-1)", "gpu(CNT:2)", "shard:7(3/4,-/4)"), _VALUE),
    (Gpus.parse, ("2", "a100:2", "h100", "mig:3g.20gb", "shard:4", "0.5"), (SlurmkitError,)),
    (job_ids.check_job_id, _JOB_IDS, (SlurmkitError,)),
    (job_ids.check_part_id, _JOB_IDS, (SlurmkitError,)),
    (job_ids.parse_task_indices, _JOB_IDS, ()),
    (lambda text: job_ids.queryable_id(job_ids.check_part_id(text)), _JOB_IDS, (SlurmkitError,)),
    (scontrol.expand_nodes, _NODE_LISTS, _VALUE),
    (scontrol.expand_typed_nodes, _NODE_LISTS, _VALUE),
    (lambda text: list(islice(scontrol.iterate_nodes(text), 1000)), _NODE_LISTS, _VALUE),
    (lambda text: parse_gpu_indices(text, "c[1-2]"), _JOB_LINES, (SlurmkitError,)),
    (jobfile.parse_directive, ("--job-name='a b' -N 2", '-J "x\\"y" --mem=4G'), (SlurmkitError,)),
    (lambda text: parse_options([("export", text)]), ("ALL,A=1", "'A=1,2',B", "NONE"),
     (SlurmkitError,)),
    (lambda text: parse_options([("extra-node-info", text)]), ("2:4:1", "*:2-4"),
     (SlurmkitError,)),
    (jobfile.parse_script, ("#!/bin/sh\n#SBATCH -N 2 --time=1\ndate\n",), (SlurmkitError,)),
    (parse_sweep_word, ("lr=1,2", "seed=0..9..3", 'x="a,b",c'), (SlurmkitError,)),
    (nodes.parse_nodes, (_NODES[:1500], _NODES[-900:]), (SlurmkitError,)),
    (capabilities.parse_nodes, (_NODES[:1500],), (*_VALUE, KeyError)),
    (parse_history, ("start 1 7 c1\nend 2 0\n",), ()),
    (Image.parse, ("ubuntu:22.04", "nvcr.io#nvidia/x@sha256:" + "a" * 64, "/x.sqsh", "docker://u@r#i"),
     (SlurmkitError,)),
    (Mount.parse, ("/a:/b:ro", "/a", "tmpfs:/x", "./a:/b"), (SlurmkitError,)),
    (normalise_dn, ("uid=a,ou=people,dc=x", r"cn=a\2Cb+ou=c , dc=X", "\\" * 60), (SlurmkitError,)),
    (lambda text: month_span(text, find_zone("UTC")), ("2026-11", "0001-01"), (SlurmkitError,)),
    (find_zone, ("Europe/Berlin", "UTC", "../../etc/passwd"), (SlurmkitError,)),
)  # fmt: skip


def _parse(chance: random.Random, _: Path) -> None:
    parser, examples, errors = chance.choice(_PARSERS)
    text = one_of(chance, examples)
    try:
        parser(text)
    except errors:
        return
    except Exception as error:
        error.add_note(f"{getattr(parser, '__qualname__', parser)} of {text!r}")
        raise


def _round_trips(chance: random.Random, _: Path) -> None:
    seconds = chance.randrange(1, 10**7)
    assert durations.parse_elapsed(durations.format_duration(seconds)) == seconds
    names = {
        f"{chance.choice('abc')}{chance.randrange(1, 30):0{chance.choice((1, 2))}}" for _ in "12345"
    }
    assert set(scontrol.expand_nodes(scontrol.fold_nodes(names))) == names
    value = odd_text(chance).translate(dict.fromkeys(map(ord, "\n\r\0")))
    (line,) = option_lines([("comment", value or "x")])
    assert jobfile.parse_directive(line.removeprefix("#SBATCH")) == [("comment", value or "x")]
    for kind, text in ((Image, one_of(chance, ("u@r#a/b:c", "/x.sqsh", "docker://r/a"))),
                       (Mount, one_of(chance, ("/a:/b:ro", "/a")))):  # fmt: skip
        try:
            made = kind.parse(text)
        except SlurmkitError:
            continue
        assert kind.parse(str(made)) == made, text


def _job_files(chance: random.Random, folder: Path) -> None:
    file = folder / "job.toml"
    spec = random_spec(chance)
    text = jobfile.format_job_file(spec)
    file.write_text(text, "utf-8", newline="")
    assert JobSpec(**jobfile.load_job_file(file)) == spec
    file.write_text(mutated(chance, text), "utf-8", newline="")
    try:
        JobSpec(**jobfile.load_job_file(file))
    except SlurmkitError:
        return


def _directives(chance: random.Random, _: Path) -> None:
    """Write a job's options as `#SBATCH` lines, and read them back."""
    job = replace(random_spec(chance), command=(), environment={}, script="#!/bin/sh\ndate\n")
    options = option_values(job)
    if job.gpus is not None:
        bind = {"gpu-bind": job.gpus.bind} if job.gpus.bind else {}
        count = {job.gpus.option: str(job.gpus)}
        if job.gpus.sockets:
            count = {"gpus-per-socket": per_socket_text(job.gpus)}
        options |= count | bind
    lines = option_lines(chance.sample(list(options.items()), len(options)))
    read = jobfile.parse_script("\n".join(["#!/bin/sh", *lines, "date", ""]))
    assert JobSpec(**read) == job


def _forged(chance: random.Random) -> str:
    """Return text that wants to be several fields or rows; it does not know the whole mark."""
    pieces = (chance.choice(("\x1f", _MARK[:-1], "\n", "\0", odd_text(chance))) for _ in range(4))
    return "".join(pieces).replace(_MARK, "")


def _rows(fields: Iterable[str], field_of_name: str, names: list[str]) -> str:
    """Return a row for each name, as Slurm prints them."""
    return "".join(
        "".join((name if field == field_of_name else "0") + _MARK for field in fields) + "\n"
        for name in names
    )


def _queue_rows(chance: random.Random, _: Path) -> None:
    names = [_forged(chance) + "." for _ in range(chance.randrange(1, 4))]
    text = _rows(QUEUE_FIELDS, "name", names)
    rows = parse_queue(io.StringIO(text), _MARK)
    assert [row.name for row in rows] == names
    try:
        parse_queue(io.StringIO(mutated(chance, text)), _MARK)
        gres.parse_holding_jobs(mutated(chance, text), _MARK)
    except SlurmkitError:
        return


def _sacct_rows(chance: random.Random, _: Path) -> None:
    names = [_forged(chance) + "." for _ in range(chance.randrange(1, 4))]
    text = _rows(SACCT_FIELDS, "JobName", names)
    batches = list(parse_batches(io.StringIO(text), _MARK, _LAYOUT, 100))
    assert sum(len(batch.rows) for batch in batches) == len(names)
    list(parse_batches(io.StringIO(mutated(chance, text)), _MARK, _LAYOUT, 100))
    with suppress(SlurmkitError):
        split_records(mutated(chance, text), _MARK, len(SACCT_FIELDS), "sacct")


def _known_hosts(chance: random.Random, folder: Path) -> None:
    lines = ("h ssh-ed25519 AAAA", "@revoked h,g ssh-rsa AAAA c", "|1|aaaa|bbbb ssh-rsa AAAA",
             "!h,* ssh-rsa AAAA", "[h]:22 x y", "@cert-authority * x y")  # fmt: skip
    file = folder / "known_hosts"
    text = "\n".join(one_of(chance, lines) for _ in range(4))
    file.write_bytes(text.encode() + chance.randbytes(chance.randrange(3)))
    load_host_keys("h", (file, folder / "none"))


def _shown(chance: random.Random, _: Path) -> None:
    text = odd_text(chance) + "".join(chr(chance.randrange(0x110000)) for _ in range(4))
    shown = printable(text)
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in shown)
    assert not set(shown) & set("\u202e\u2028\n\x1b"), ascii(shown)


_KINDS = (_parse,) * 12 + (
    _round_trips, _job_files, _directives, _queue_rows, _sacct_rows, _known_hosts, _shown,
)  # fmt: skip


def test_parsers(tmp_path: Path) -> None:
    fuzz("parsers", lambda chance: chance.choice(_KINDS)(chance, tmp_path), at_least=5000)
