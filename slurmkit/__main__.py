"""The `slurmkit` command, also as `python -m slurmkit`."""

import signal


def main() -> None:
    """Run the command line and exit; Ctrl-C while it is loaded shows no traceback."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from slurmkit.cli.main import main as run_and_exit  # noqa: PLC0415 - see above

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_and_exit()


if __name__ == "__main__":
    main()
