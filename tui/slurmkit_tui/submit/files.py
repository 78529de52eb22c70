"""The form from a file, and into one."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.jobfile import job_file_text, read_job_file, read_script
from slurmkit_tui.commands import Wanted
from slurmkit_tui.dialogs import Prompt
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.submit.draft import Draft, read, texts_of_fields

if TYPE_CHECKING:
    from slurmkit.spec import JobSpec
    from slurmkit_tui.submit.form import SubmitForm

_LARGEST = 4 << 20  # bytes; sbatch itself refuses scripts beyond that (max_script_size)


def draft_of(path: Path) -> Draft:
    """The form that a job file or a batch script fills.

    Raises:
        BadInput: naming the file, and the key or the line.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a device or a pipe may have no end
            raise BadInput(f"{path} is no plain file; name a job file or a batch script")
        with path.open("rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    if found.st_size > _LARGEST:
        raise BadInput(f"{path} is larger than any job file or batch script may be")
    texts, wrong = texts_of_fields(read_script(path) if is_script else read_job_file(path))
    if wrong:
        raise BadInput(f"{path}: {'; '.join(wrong)}")
    return Draft(texts, str(path))


def write_draft(path: Path, spec: JobSpec) -> None:
    """Write a job file that is not there yet.

    Raises:
        BadInput: when it is there, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(job_file_text(spec))
    except FileExistsError as error:
        raise BadInput(f"{path} is there already; choose another name") from error
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error


def ask_open(form: SubmitForm) -> None:
    """Let the person name a file, and fill the form from it."""

    def typed(name: str | None) -> None:
        if name is not None:
            form.run_worker(_open(form, _path(name)), description="open")

    hint = "a job file in TOML (slurmkit submit --job-file), or a batch script"
    form.app.push_screen(Prompt(Wanted("Open file", hint, _named)), typed)


def ask_save(form: SubmitForm) -> None:
    """Let the person name a file, and write the form into it."""
    reading = read(form.texts)
    if reading.spec is None:
        form.app.tell(f"not saved: {next(iter(reading.wrong.values()))}", "warning")
        return
    spec = reading.spec

    def typed(name: str | None) -> None:
        if name is not None:
            form.run_worker(_save(form, _path(name), spec), description="save")

    hint = "a job file in TOML, for slurmkit submit --job-file, plan and this form"
    start = f"{spec.job_name or 'job'}.toml"
    wanted = Wanted("Save file", hint, _named, lambda _row: start)
    form.app.push_screen(Prompt(wanted, start if start.isprintable() else "job.toml"), typed)


async def _open(form: SubmitForm, path: Path) -> None:
    try:
        draft = await in_thread(partial(draft_of, path))
    except SlurmkitError as error:
        form.app.tell(str(error), "error")
    else:
        form.replace(draft)


async def _save(form: SubmitForm, path: Path, spec: JobSpec) -> None:
    try:
        await in_thread(partial(write_draft, path, spec))
    except SlurmkitError as error:
        form.app.tell(str(error), "error")
    else:
        form.app.tell(f"wrote {path.absolute()}")


def _named(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise BadInput("name a file")
    return text.strip()


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # nobody of that name
        return Path(name)
