"""`slurmkit completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_SLURMKIT_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print the script that completes slurmkit's commands and options on Tab.

    \b
    Examples:
      slurmkit completion bash > ~/.local/share/bash-completion/completions/slurmkit
      slurmkit completion zsh > "${fpath[1]}/_slurmkit"
      slurmkit completion fish > ~/.config/fish/completions/slurmkit.fish
    """
    made = get_completion_class(shell)
    if made is None:  # click would have to drop a shell
        raise click.UsageError(f"click cannot complete for {shell}")
    click.echo(made(click.Group(), {}, "slurmkit", VARIABLE).source())
