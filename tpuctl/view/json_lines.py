"""For programs: one JSON envelope at the end, and events as JSON lines where asked for."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from enum import Enum
from typing import Any

from tpuctl.errors import Diagnostic
from tpuctl.model.events import CommandOutput, Event, LogChunk, WarningIssued
from tpuctl.view.output import Output

__all__ = ["ENVELOPE_VERSION", "Machine", "envelope"]

ENVELOPE_VERSION = 1
Written = LogChunk | CommandOutput
LONGEST = 4  # bytes of a character in UTF-8
# What some readers take for the end of a line, and JSON leaves as it is.
LINE_ENDS = {ord(one): f"\\u{ord(one):04x}" for one in "\u0085\u2028\u2029"}


def envelope(
    command: str, exit_code: int, data: Any, diagnostics: Sequence[Diagnostic]
) -> dict[str, Any]:
    """The one shape of every answer, failures included."""
    return {
        "version": ENVELOPE_VERSION,
        "command": command,
        "status": "ok" if exit_code == 0 else "failed",
        "exit_code": exit_code,
        "data": data,
        "diagnostics": [one.as_dict() for one in diagnostics],
    }


class Machine:
    """Silent but for the envelope; with `events` each event is a JSON line on stdout.

    Without, what jobs and commands write goes to stderr, so that stdout stays JSON.
    """

    def __init__(self, *, events: bool = False) -> None:
        self.events = events
        self.diagnostics: list[Diagnostic] = []
        self._output = Output(all_to_stderr=True)
        self._halves: dict[tuple[int, bool], Written] = {}

    def on(self, event: Event) -> None:
        if isinstance(event, WarningIssued):
            self.diagnostics.append(event.diagnostic)
        if isinstance(event, Written):
            if self.events:
                self._tell_bytes(event)
            else:
                self._output.write(event)
        elif self.events:
            _print(_as_dict(event))

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics += diagnostics

    def name_workers(self, workers: Sequence[int]) -> None:
        self._output.name_workers(workers)  # events say it themselves

    def close(self) -> None:
        self._output.finish()
        for rest in self._halves.values():
            _print_bytes(rest)
        self._halves.clear()

    def _tell_bytes(self, event: Written) -> None:
        """As text where it is text: half a character at the end waits for its other half."""
        key = event.worker, isinstance(event, CommandOutput) and event.is_error
        half = self._halves.pop(key, None)
        if half is not None and _goes_on(half, event):
            event = _part(event, half.data + event.data, -len(half.data))
        elif half is not None:
            _print_bytes(half)
        cut = len(event.data) - _half(event.data)
        if cut:
            _print_bytes(_part(event, event.data[:cut], 0))
        if cut < len(event.data):
            self._halves[key] = _part(event, event.data[cut:], cut)


def _part(event: Written, data: bytes, moved: int) -> Written:
    """The same, of bytes that begin so much later."""
    if isinstance(event, LogChunk):
        return dataclasses.replace(event, data=data, offset=event.offset + moved)
    return dataclasses.replace(event, data=data)


def _goes_on(half: Written, event: Written) -> bool:
    if isinstance(half, LogChunk) and isinstance(event, LogChunk):
        end = half.offset + len(half.data)
        return (event.attempt, event.offset) == (half.attempt, end)
    return type(half) is type(event)


def _half(data: bytes) -> int:
    """How many bytes at the end may be the beginning of a character."""
    for count in range(1, min(LONGEST, len(data) + 1)):
        first = data[-count]
        if first < 0x80:
            return 0
        if first >= 0xC0:
            length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return count if count < length else 0
    return 0


def _print_bytes(event: Written) -> None:
    fields = _as_dict(event)
    try:
        fields["data"] = event.data.decode("utf-8")
    except UnicodeDecodeError:
        fields["data"] = base64.b64encode(event.data).decode("ascii")
        fields["encoding"] = "base64"
    _print(fields)


def _as_dict(event: Event) -> dict[str, Any]:
    fields = dataclasses.asdict(event)
    plain = {name: one.value if isinstance(one, Enum) else one for name, one in fields.items()}
    return {"event": type(event).__name__, **plain}


def _print(fields: dict[str, Any]) -> None:
    print(json.dumps(fields, ensure_ascii=False).translate(LINE_ENDS), flush=True)
