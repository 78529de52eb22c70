"""A real terminal on the login node: tmux with the TUI in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

COLUMNS, LINES = 120, 30


class Terminal:
    """A terminal on the login node, with a shell in it; alice's, or root's with an empty name."""

    def __init__(self, lab: Lab, name: str, user: str = "alice") -> None:
        self._lab = lab
        self._user = user
        self._tmux = ("tmux", "-L", name)
        size = ("-x", str(COLUMNS), "-y", str(LINES))
        # The prompt is a word no program prints by itself.
        shell = "env TERM=screen-256color PS1=ready: bash --norc --noprofile -i"
        self._run("-f", "/dev/null", "new-session", "-d", *size, shell)

    def _run(self, *argv: str) -> str:
        return self._lab.run(*self._tmux, *argv, user=self._user).stdout

    def type(self, *keys: str) -> None:
        """As a person types: Escape and a letter at once are one key, Alt and that letter.

        What is typed while a program ends is lost.
        """
        self._run("send-keys", *keys)
        time.sleep(0.3)

    def resize(self, columns: int, lines: int) -> None:
        self._run("resize-window", "-x", str(columns), "-y", str(lines))

    def paste(self, text: str) -> None:
        """As a terminal pastes: bracketed where the program asked for that."""
        self._run("set-buffer", text)
        self._run("paste-buffer", "-p")

    def screen(self) -> str:
        return self._run("capture-pane", "-p")

    def mode(self) -> str:
        """Whether the alternate screen and the mouse are in use, and the cursor is shown."""
        flags = "#{alternate_on} #{mouse_any_flag} #{cursor_flag}"
        return self._run("display-message", "-p", flags).strip()

    def child(self) -> str:
        """Process id of what the shell runs."""
        shell = self._run("display-message", "-p", "#{pane_pid}").strip()
        return self._lab.run("pgrep", "-P", shell).stdout.strip()

    def wait_for(self, *words: str) -> str:
        return wait_for(self.screen, lambda shown: all(word in shown for word in words))

    def wait_for_row(self, job_id: str, state: str) -> str:
        """Wait until a job is shown in a state; other jobs of the same person may be there too."""
        return wait_for(self.screen, lambda shown: state in row(shown, job_id))

    def close(self) -> None:
        self._run("kill-server")


@pytest.fixture(name="terminal")
def open_terminal(lab: Lab) -> Iterator[Terminal]:
    opened = Terminal(lab, f"tui{time.time_ns()}")
    yield opened
    opened.close()


def row(screen: str, job_id: str) -> str:
    lines = (line.lstrip("▸ ") for line in screen.splitlines()[2:])  # below tabs and counts
    return next((line for line in lines if line.startswith(f"{job_id} ")), "")
