"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable

import click
import pytest

from slurmkit.cli import tables

HEADER = ("ID", "NAME", "GPUS")
ROWS = [("1", "short", "8"), ("20", "日本語", "16"), ("3", "e\u0301\n", "0")]
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, tables.Paint | None], list[str]]:
    """Print the table on a terminal of some columns and return its lines."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def lines(columns: int, paint: tables.Paint | None = None) -> list[str]:
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("COLUMNS", str(columns))
        tables.print_table(HEADER, ROWS, right={"GPUS"}, paint=paint)
        return screen.getvalue().splitlines()

    return lines


def red(column: str, text: str) -> str | None:
    return "red" if column == "NAME" and text != column else None


def test_columns_line_up_by_the_width_of_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(HEADER, ROWS, right={"GPUS"})
    assert capsys.readouterr().out.splitlines() == [
        "ID  NAME    GPUS",
        "1   short      8",
        "20  日本語    16",
        "3   e\u0301\\n        0",
    ]


def test_in_a_pipe_nothing_is_cut_or_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(("NAME",), [("x" * 500,)], paint=red)
    assert capsys.readouterr().out == f"NAME\n{'x' * 500}\n"


def test_a_long_table_is_printed_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(("N",), [(str(n),) for n in range(2500)])
    assert capsys.readouterr().out.split() == ["N", *map(str, range(2500))]


def test_an_empty_table_has_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(HEADER, [])
    assert capsys.readouterr().out == "ID  NAME  GPUS\n"


@pytest.mark.parametrize("columns", [1, 2, 5, 6, 7, 8, 9, 12, 16])
def test_on_a_terminal_no_line_is_wider_than_it(
    columns: int, on_terminal: Callable[..., list[str]]
) -> None:
    """Also where a wide character stands at the edge."""
    assert all(tables.cell_width(line) <= columns for line in on_terminal(columns))


WIDE = ("ID", "NAME", "WHY", "GPUS", "HOURS")
WIDE_ROWS = [("1", "日本語日本語日本語", "because of this and that", "8", "1,234.50")]


def wide(monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    tables.print_table(WIDE, WIDE_ROWS, right={"GPUS", "HOURS"})
    return screen.getvalue().splitlines()


def test_the_widest_texts_are_cut_and_marked_and_numbers_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = WIDE_ROWS[0][1]
    assert wide(monkeypatch, 61)[1] == f"1   {name}  because of this and …     8  1,234.50"
    assert wide(monkeypatch, 48)[1] == "1   日本語日本語…  because of t…     8  1,234.50"


def test_columns_that_do_not_fit_are_left_out_and_that_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wide(monkeypatch, 37) == [
        "ID  NAME         WHY          GPUS  …",
        "1   日本語日本…  because of…     8",
    ]
    assert wide(monkeypatch, 6) == ["ID  …", "1"]


def fitted(monkeypatch: pytest.MonkeyPatch, columns: int, fit: tables.Fit) -> list[str]:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    tables.print_table(WIDE, WIDE_ROWS, right={"GPUS", "HOURS"}, fit=fit)
    return screen.getvalue().splitlines()


def test_the_least_useful_column_goes_first_and_the_point_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit = tables.Fit(whole=("ID", "WHY"), least=("GPUS", "NAME"))
    name = WIDE_ROWS[0][1]
    assert (
        fitted(monkeypatch, 65, fit)[1] == f"1   {name}  because of this and that     8  1,234.50"
    )
    assert fitted(monkeypatch, 55, fit) == [
        "ID  NAME          WHY                          HOURS  …",
        "1   日本語日本 …  because of this and that  1,234.50",
    ]
    assert fitted(monkeypatch, 42, fit) == [
        "ID  WHY                          HOURS  …",
        "1   because of this and that  1,234.50",
    ]


def test_the_point_of_a_table_is_wrapped_when_nothing_is_left_to_leave_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit = tables.Fit(whole=("ID", "WHY"), least=("GPUS", "NAME"))
    assert fitted(monkeypatch, 24, fit) == [
        "ID  WHY              …",
        "1   because of this",
        "    and that",
    ]


def test_texts_are_wrapped_at_blanks_and_commas_before_columns_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrapped = tables.Fit(wrapped=("NAME", "WHY"), least=("GPUS",))
    assert fitted(monkeypatch, 45, wrapped) == [
        "ID  NAME          WHY               HOURS  …",
        "1   日本語日本語  because of     1,234.50",
        "    日本語        this and that",
    ]
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "15")
    tables.print_table(("NODES",), [("c[1-3],c[7-9],d4",)], fit=tables.Fit(wrapped=("NODES",)))
    assert screen.getvalue().splitlines() == ["NODES", "c[1-3],c[7-9],", "d4"]
    meaning = "how long a screen waits before it asks again"
    monkeypatch.setenv("COLUMNS", "44")
    table = ("KEY", "MEANING", "FROM"), [("interval", meaning, "default")]
    tables.print_table(*table, fit=tables.Fit(wrapped=("MEANING",), least=("FROM",)))
    assert screen.getvalue().splitlines()[3:] == [
        "KEY       MEANING                  FROM",
        "interval  how long a screen waits  default",
        "          before it asks again",
    ]


def test_columns_of_one_name_are_all_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter of a sweep may have the name of another column."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    tables.print_table(("STATE", "STATE"), [("a", "b")])
    assert screen.getvalue().splitlines() == ["STATE  STATE", "a      b"]


def test_every_line_of_a_wrapped_row_keeps_its_colours(
    on_terminal: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    on_terminal(80)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "14")
    tables.print_table(
        ("NAME",), [("one two three",)], paint=red, fit=tables.Fit(wrapped=("NAME",))
    )
    monkeypatch.setenv("COLUMNS", "12")
    tables.print_table(
        ("NAME",), [("one two three",)], paint=red, fit=tables.Fit(wrapped=("NAME",))
    )
    whole, *parts = [line for line in screen.getvalue().splitlines() if "NAME" not in line]
    assert whole == click.style("one two three", fg="red")
    assert parts == [click.style("one two", fg="red"), click.style("three", fg="red")]


def test_cells_are_coloured_by_what_they_said_before_they_were_cut(
    on_terminal: Callable[..., list[str]],
) -> None:
    for columns in (3, 5, 9, 100):
        plain, coloured = on_terminal(columns), on_terminal(columns, red)
        assert [ESCAPE.sub("", line).rstrip() for line in coloured] == [p.rstrip() for p in plain]
        assert all(line.count("\x1b[31m") == line.count("\x1b[0m") for line in coloured)
        assert "\x1b" not in coloured[0]
    assert coloured[1].startswith(f"1   {click.style('short ', fg='red')}")


def test_a_cut_cell_keeps_its_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "9")
    tables.print_table(
        ("STATE",),
        [("NODE_FAILED",)],
        paint=lambda _, text: (text == "NODE_FAILED" and "red") or None,
    )
    assert screen.getvalue().splitlines()[1] == click.style("NODE_FAI…", fg="red")


@pytest.mark.parametrize(
    ("name", "value", "colours"),
    [("NO_COLOR", "1", False), ("TERM", "dumb", False), ("NO_COLOR", "", True)],
)
def test_colours_can_be_turned_off(
    name: str,
    value: str,
    colours: bool,
    on_terminal: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    assert ("\x1b" in "".join(on_terminal(100, red))) is colours


def test_long_facts_are_broken_at_blanks_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, command, path = "some words " * 9, "  scontrol " + "update " * 20, "/" + "long" * 40
    facts = [("Reason", words.strip()), ("Sooner", command), ("Log", path)]
    tables.print_key_values(facts)
    assert len(capsys.readouterr().out.splitlines()) == 3
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    tables.print_key_values(facts)
    first, second, *others = screen.getvalue().splitlines()
    assert first == "Reason  " + "some words " * 6 + "some"
    assert second == "        " + "words" + " some words" * 2
    assert others == [f"Sooner  {command}", f"Log     {path}"]


def test_a_long_line_hangs_under_its_head_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "50")
    head = click.style("warning  ", fg="yellow")
    tables.print_wrapped(head, "word " * 12, indent=9)
    tables.print_wrapped(head, "word", indent=9)
    lines = ESCAPE.sub("", screen.getvalue()).splitlines()
    assert lines == [f"warning {' word' * 8}", f"{' ' * 8}{' word' * 4}", "warning  word"]


def test_a_long_line_stays_one_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_wrapped("note: ", f"{'word ' * 30}\x1b[2J", indent=6, err=True)
    assert capsys.readouterr().err == f"note: {'word ' * 30}\\x1b[2J\n"
