"""What jobs write cannot do more to a terminal than color it; in pipes every byte arrives."""

from __future__ import annotations

import json
import os
import pty
import sys

import pytest
from rich.text import Text

from tpuctl.errors import Diagnostic
from tpuctl.model.events import LogChunk, WarningIssued
from tpuctl.model.text.terminal_text import (
    JobOutputFilter,
    escape_control_characters,
    without_control_characters,
)
from tpuctl.view.progress.console import Console
from tpuctl.view.progress.output import Output
from tpuctl.view.terminal.safe_stream import safe_streams
from tpuctl.view.terminal.tables import print_facts

# Sequences of xterm's ctlseqs.html and of Unicode's bidirectional algorithm (UAX #9).
ATTACKS = (
    "\x1b]52;c;ZXZpbA==\x07",  # sets the clipboard
    "\x1b]0;title\x1b\\",
    "\x1b[2J\x1b[H",
    "\x1bc",  # full reset
    "\x1bP1$r0m\x1b\\",
    "\x9b2J",
    "\x9d0;title\x9c",
    "\u202eevil\u202c",
    "\u2066evil\u2069",
)


def is_harmless(text: str) -> bool:
    return not any(
        letter in "\x1b\x9b\x9d\x9c\x90\x07\x08" or "\u202a" <= letter <= "\u202e"
        or "\u2066" <= letter <= "\u2069"
        for letter in text
    )  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=ascii)
def test_text_has_no_control_characters(attack: str) -> None:
    text = without_control_characters(f"before{attack}after\n\tend")
    assert text.startswith("before")
    assert text.endswith("after\n\tend")
    assert is_harmless(text)


@pytest.mark.parametrize("attack", ATTACKS, ids=ascii)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_job_output_on_terminal_keeps_colors_only(attack: str, size: int) -> None:
    data = f"é\x1b[31mred\x1b[0m{attack}50%\r100%\x08\n안녕\u2026".encode()
    output_filter = JobOutputFilter()
    pieces = [output_filter.feed(data[at : at + size]) for at in range(0, len(data), size)]
    filtered = b"".join([*pieces, output_filter.finish()]).decode()
    assert filtered.startswith("é\x1b[31mred\x1b[0m")
    assert filtered.endswith("50%\r100%\x08\n안녕\u2026")
    assert is_harmless(filtered[len("é\x1b[31mred\x1b[0m") :].replace("\x08", ""))


@pytest.mark.parametrize("is_terminal", [False, True])
def test_log_bytes_are_unchanged_in_pipe(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pty.openpty() if is_terminal else os.pipe()
    data = "".join(ATTACKS).encode()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with safe_streams():
            output = Output()
            output.write(LogChunk(0, data, 0))
            output.finish()
        received = os.read(reader, 1000)
    os.close(reader)
    assert is_harmless(received.decode()) if is_terminal else received == data


@pytest.mark.parametrize("attack", ATTACKS, ids=ascii)
def test_views_show_no_control_characters(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    with safe_streams():
        print(f"line {attack}")
        print_facts([("cause", attack)])
        view = Console()
        view.on(WarningIssued(Diagnostic(attack, attack, attack, where=attack)))
        view.rich.print(Text(attack))
        view.close()
    captured = capsys.readouterr()
    assert is_harmless(captured.out)
    assert is_harmless(captured.err)


def test_json_escapes_what_it_could_contain() -> None:
    fields = {"detail": "".join(ATTACKS)}
    text = escape_control_characters(json.dumps(fields, ensure_ascii=False))
    assert is_harmless(text)
    assert json.loads(text) == fields
