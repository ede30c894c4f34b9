"""The view for programs: a JSON envelope at the end, and events as JSON lines."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from enum import Enum
from typing import Any

from tpuctl.errors import Diagnostic
from tpuctl.model.events import CommandOutput, Event, LogChunk, WarningIssued
from tpuctl.model.text.terminal_text import escape_control_characters
from tpuctl.model.workers.worker_numbering import WorkerNumbering
from tpuctl.view.progress.output import Output

ENVELOPE_VERSION = 1
OutputEvent = LogChunk | CommandOutput
MAX_UTF8_BYTES = 4  # bytes of a character in UTF-8


def envelope(
    command: str, exit_code: int, data: Any, diagnostics: Sequence[Diagnostic]
) -> dict[str, Any]:
    """The envelope of every result, including failures."""
    return {
        "version": ENVELOPE_VERSION,
        "command": command,
        "status": "ok" if exit_code == 0 else "failed",
        "exit_code": exit_code,
        "data": data,
        "diagnostics": [dataclasses.asdict(diagnostic) for diagnostic in diagnostics],
    }


class JsonLines:
    """Prints only the envelope; with `events`, each event is a JSON line on stdout.

    Without `events`, output of jobs and commands goes to stderr, so that stdout stays JSON.
    """

    def __init__(self, *, events: bool = False) -> None:
        self.events = events
        self.diagnostics: list[Diagnostic] = []
        self._output = Output(all_to_stderr=True)
        self._incomplete: dict[tuple[int, bool], OutputEvent] = {}

    def on(self, event: Event) -> None:
        if isinstance(event, WarningIssued):
            self.diagnostics.append(event.diagnostic)
        if isinstance(event, OutputEvent):
            if self.events:
                self._emit_bytes(event)
            else:
                self._output.write(event)
        elif self.events:
            _print(_as_dict(event))

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics += diagnostics

    def name_workers(self, numbering: WorkerNumbering) -> None:
        self._output.name_workers(numbering)  # reported by events

    def expect_log(self) -> None:
        pass

    def close(self) -> None:
        self._output.finish()
        for rest in self._incomplete.values():
            _print_bytes(rest)
        self._incomplete.clear()

    def _emit_bytes(self, event: OutputEvent) -> None:
        """Emit bytes as text if possible; keep an incomplete last character for the next call."""
        key = event.worker, isinstance(event, CommandOutput) and event.is_error
        half = self._incomplete.pop(key, None)
        if half is not None and _continues(half, event):
            event = _part(event, half.data + event.data, -len(half.data))
        elif half is not None:
            _print_bytes(half)
        cut = len(event.data) - _incomplete_length(event.data)
        if cut:
            _print_bytes(_part(event, event.data[:cut], 0))
        if cut < len(event.data):
            self._incomplete[key] = _part(event, event.data[cut:], cut)


def _part(event: OutputEvent, data: bytes, moved: int) -> OutputEvent:
    """The same event for bytes that start `moved` bytes later."""
    if isinstance(event, LogChunk):
        return dataclasses.replace(event, data=data, offset=event.offset + moved)
    return dataclasses.replace(event, data=data)


def _continues(half: OutputEvent, event: OutputEvent) -> bool:
    if isinstance(half, LogChunk) and isinstance(event, LogChunk):
        end = half.offset + len(half.data)
        return (event.attempt, event.offset) == (half.attempt, end)
    return type(half) is type(event)


def _incomplete_length(data: bytes) -> int:
    """The number of bytes at the end that may start an incomplete character."""
    for count in range(1, min(MAX_UTF8_BYTES, len(data) + 1)):
        first = data[-count]
        if first < 0x80:
            return 0
        if first >= 0xC0:
            length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return count if count < length else 0
    return 0


def _print_bytes(event: OutputEvent) -> None:
    fields = _as_dict(event)
    try:
        fields["data"] = event.data.decode("utf-8")
    except UnicodeDecodeError:
        fields["data"] = base64.b64encode(event.data).decode("ascii")
        fields["encoding"] = "base64"
    _print(fields)


def _as_dict(event: Event) -> dict[str, Any]:
    fields = dataclasses.asdict(event)
    plain = {
        name: value.value if isinstance(value, Enum) else value for name, value in fields.items()
    }
    return {"event": type(event).__name__, **plain}


def _print(fields: dict[str, Any]) -> None:
    print(escape_control_characters(json.dumps(fields, ensure_ascii=False)), flush=True)
