"""What is given to a submission when it is sent, beside its script, which stays as it was shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from slurmkit.errors import BadInput


class Beside(msgspec.Struct, frozen=True):
    """What joins the options of a script at its submit.

    Attributes:
        after: dependencies in Slurm's words (`afterok:7:8`, `afterany:9`; sbatch(1) --dependency)
            that must all hold, beside the job's own.
        hold: it is sent held.
        comment: stands after the user's own comment.
    """

    after: tuple[str, ...] = ()
    hold: bool = False
    comment: str = ""

    def following(self, job_ids: Iterable[str], order: str = "afterok") -> Beside:
        """The same, also after jobs that must end well, or by `afterany` end at all."""
        ids = ":".join(job_ids)
        return msgspec.structs.replace(self, after=(*self.after, f"{order}:{ids}")) if ids else self

    def saying(self, words: str) -> Beside:
        """The same, with further words in the comment."""
        said = " ".join(filter(None, [self.comment, words]))
        return msgspec.structs.replace(self, comment=said)

    def over(self, options: Mapping[str, str]) -> dict[str, str]:
        """The options that change or are added; the value of a flag is empty.

        Args:
            options: those of the script, sbatch's long names without dashes.

        Raises:
            BadInput: when the job's own dependency cannot be joined with `after`.
        """
        found = self._order(options)
        if self.hold:
            found["hold"] = ""
        if self.comment:
            found["comment"] = " ".join(filter(None, [options.get("comment"), self.comment]))
        return found

    def _order(self, options: Mapping[str, str]) -> dict[str, str]:
        if not self.after:
            return {}
        own = options.get("dependency", "")
        if "?" in own:
            raise BadInput(
                f"--dependency={own} waits for any of several jobs, but this job must wait for"
                f" {', '.join(self.after)} too; separate with commas"
            )
        found = {"dependency": ",".join(filter(None, [own, *self.after]))}
        # Without it a job whose predecessor failed would pend for ever.
        return found if "kill-on-invalid-dep" in options else found | {"kill-on-invalid-dep": "yes"}


ALONE = Beside()
