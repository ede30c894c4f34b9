"""Events in JSON: names, keys, and bytes that are text or not."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import typing

import pytest

from tpuctl.errors import Diagnostic
from tpuctl.model import events
from tpuctl.model.events import CommandOutput, LogChunk, Note, Outcome, StepFinished, WarningIssued
from tpuctl.model.workers.worker_numbering import WorkerNumbering
from tpuctl.view.progress.json_lines import JsonLines

# Programs rely on these: names and keys may be added, but not removed.
PINNED = {
    "CommandOutput": {"worker", "data", "is_error", "slice"},
    "JobEnded": {"job", "state", "exit_code", "is_job_exit_code", "worker", "detail", "slice"},
    "LogChunk": {"worker", "data", "offset", "attempt", "slice"},
    "Note": {"text"},
    "Planned": {"steps"},
    "PageServed": {"url"},
    "PortForwarded": {"worker", "worker_name", "port", "local_port", "url"},
    "StatusUpdate": {"at", "data", "problem"},
    "StepFinished": {"address", "outcome", "seconds", "because"},
    "StepProgress": {"address", "text", "fraction", "done", "total"},
    "StepStarted": {"address", "action", "because"},
    "WarningIssued": {"diagnostic", "is_error"},
}


def printed_events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, typing.Any]]:
    out = capsys.readouterr().out
    return [json.loads(line) for line in out.split("\n")[:-1]]


def decoded(event: dict[str, typing.Any]) -> bytes:
    if event.get("encoding") == "base64":
        return base64.b64decode(event["data"])
    assert "encoding" not in event
    return str(event["data"]).encode()


def test_event_names_and_keys_are_stable() -> None:
    fields_by_event = {
        kind.__name__: {field.name for field in dataclasses.fields(kind)}
        for kind in typing.get_args(events.Event)
    }
    for name, keys in PINNED.items():
        assert keys <= fields_by_event[name]


def test_each_event_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonLines(events=True)
    view.on(Note("a\nb\u2028c\u0085d"))
    view.on(StepFinished("node/x", Outcome.DONE, 1.5, "why"))
    view.on(WarningIssued(Diagnostic("summary", "detail", "hint", "where"), is_error=True))
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3, "with any definition of line ends"
    note, step, warned = (json.loads(line) for line in out.splitlines())
    assert note == {"event": "Note", "text": "a\nb\u2028c\u0085d"}
    assert (step["event"], step["outcome"]) == ("StepFinished", "done")
    assert warned["diagnostic"]["hint"] == "hint"
    assert [diagnostic.summary for diagnostic in view.diagnostics] == ["summary"]


def test_split_character_is_reassembled(capsys: pytest.CaptureFixture[str]) -> None:
    text = "안녕, мир, 🙂"
    view = JsonLines(events=True)
    for at, byte in enumerate(text.encode()):
        view.on(LogChunk(0, bytes([byte]), at, attempt=2))
    view.close()
    printed = printed_events(capsys)
    assert all("encoding" not in event for event in printed)
    assert "".join(event["data"] for event in printed) == text
    offset = 0
    for chunk in printed:
        assert (chunk["offset"], chunk["attempt"]) == (offset, 2)
        offset += len(chunk["data"].encode())


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_complete_and_in_order(capsys: pytest.CaptureFixture[str], seed: int) -> None:
    choice = random.Random(seed)
    parts = [choice.randbytes(7), "é안🙂\n".encode(), b"plain", b"\xed\xa0\x80", b"\xf0\x9f"]
    logs = {worker: b"".join(choice.choices(parts, k=200)) for worker in (0, 1)}
    view = JsonLines(events=True)
    at = {0: 0, 1: 0}
    while any(at[worker_index] < len(logs[worker_index]) for worker_index in logs):
        worker = choice.choice(
            [worker_index for worker_index in logs if at[worker_index] < len(logs[worker_index])]
        )
        piece = logs[worker][at[worker] : at[worker] + choice.randint(1, 9)]
        view.on(LogChunk(worker, piece, at[worker]))
        at[worker] += len(piece)
    view.close()
    got = {0: b"", 1: b""}
    for event in printed_events(capsys):
        assert event["offset"] == len(got[event["worker"]])
        got[event["worker"]] += decoded(event)
    assert got == logs


def test_split_characters_of_different_streams_are_not_joined(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = JsonLines(events=True)
    half, other = "é".encode()[:1], "é".encode()[1:]
    view.on(CommandOutput(0, half))
    view.on(CommandOutput(0, other, is_error=True))
    view.on(LogChunk(1, half, 0))
    view.on(LogChunk(1, other, 7))  # not at the offset where the half character ended
    view.close()
    printed = printed_events(capsys)
    assert [event.get("encoding") for event in printed] == ["base64"] * 4
    assert sorted(decoded(event) for event in printed) == sorted([half, half, other, other])


def test_without_events_program_output_goes_to_stderr(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    view = JsonLines()
    view.on(Note("not shown"))
    view.on(LogChunk(0, b"\xff\n", 0))
    view.close()
    assert capfdbinary.readouterr() == (b"", b"\xff\n")
    view.name_workers(WorkerNumbering(2))
    view.on(CommandOutput(0, b"half a li"))
    view.on(CommandOutput(1, b"whole\n"))
    view.on(CommandOutput(0, b"ne\n"))
    view.on(CommandOutput(1, b"no end"))
    view.close()
    out, error = capfdbinary.readouterr()
    assert out == b""
    assert error == b"[worker 1] whole\n[worker 0] half a line\n[worker 1] no end\n"
