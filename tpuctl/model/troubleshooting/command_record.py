"""A record of the last commands: what they asked the cloud, its answers, and how they ended.

It is for bug reports and for `explain`, and stays on this machine: one private file for each
command in the user's state folder, with a line of JSON for each call. Files are small and few, and
secrets are replaced before they are written. Where nothing can be written, nothing is recorded.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from reprlib import Repr
from typing import Any

from tpuctl.errors import Diagnostic
from tpuctl.files import private_folder, read_file, state_home
from tpuctl.model.text.redaction import arguments_without_secrets, secret_values, without_secrets

MAX_COMMANDS = 20
MAX_BYTES = 1 << 17  # of a command's file; the oldest calls are dropped
# What a damaged file raises: empty, cut off, binary, or with other contents.
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
MAX_TEXT_LENGTH = 4000  # of a request, and of an answer
CHANGES = ("up", "run", "down")  # the commands that change a stack
# Exit codes of commands that did what was asked: succeeded, rejected their arguments or were not
# confirmed, were interrupted or stopped.
NO_FAILURE = (0, 2, 130, 143)


@dataclass(frozen=True)
class Call:
    """A call of a client's method: its answer, or the exception that it raised."""

    subject: str
    method: str
    arguments: Sequence[Any]
    fields: Mapping[str, Any]
    answer: Any
    error: BaseException | None
    seconds: float


RecordCall = Callable[[Call], None]


@dataclass(frozen=True)
class CommandRecord:
    """A command of the past. `exit_code` is None if it was killed, or has not ended yet."""

    path: Path
    arguments: tuple[str, ...]
    started: datetime
    command: str = ""
    exit_code: int | None = None
    stacks: tuple[tuple[str, str, str], ...] = ()  # cloud, project and name
    jobs: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


class CommandRecorder:
    """Writes the record of one command. Thread-safe; writes nothing until the first call or `end`.

    recorder = CommandRecorder(["up", "--yes"])
    recorder.call(...)
    recorder.end("up", 75, diagnostics=[...])
    """

    def __init__(
        self, arguments: Sequence[str], *, environment: Mapping[str, str] = os.environ
    ) -> None:
        line, values = arguments_without_secrets(arguments)
        self._secrets = secret_values(environment) | values
        self._started = datetime.now(UTC)
        self._arguments = [*map(self._scrub, line)]
        self._path: Path | None = None
        self._size = 0
        self._has_ended = False
        self._lock = threading.Lock()

    def call(self, call: Call) -> None:
        """Record a call. Called in the thread of the call, which may outlive the command."""
        fields = {key: value for key, value in call.fields.items() if value is not None}
        request = [*call.arguments, *([fields] if fields else [])]
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(call.seconds, 3),
            "call": call.method,
            "subject": self._text(call.subject, plain=True),
            "request": self._text(request[0] if len(request) == 1 else request),
        }
        if call.error is None:
            line["answer"] = self._text(call.answer)
        else:
            line["error"] = self._text(f"{type(call.error).__qualname__}: {call.error}", plain=True)
        self._write(line)

    def end(
        self,
        command: str,
        exit_code: int,
        *,
        stacks: Iterable[tuple[str, str, str]] = (),
        jobs: Iterable[str] = (),
        diagnostics: Iterable[Diagnostic] = (),
        traceback: str = "",
    ) -> None:
        self._write(
            {
                "ended": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "command": command,
                "exit_code": exit_code,
                "stacks": [*stacks],
                "jobs": [*jobs],
                "diagnostics": [
                    {name: self._scrub(text) for name, text in vars(diagnostic).items()}
                    for diagnostic in diagnostics
                ],
                "traceback": self._scrub(traceback),
            }
        )

    def _text(self, value: Any, *, plain: bool = False) -> str:
        text = value if plain else TEXTS.repr(value)
        return self._scrub(text[: 2 * MAX_TEXT_LENGTH])[:MAX_TEXT_LENGTH]

    def _scrub(self, text: str) -> str:
        return without_secrets(text, self._secrets)

    def _write(self, line: Mapping[str, Any]) -> None:
        data = f"{json.dumps(line, ensure_ascii=False)}\n".encode(errors="replace")
        with self._lock, suppress(OSError, ValueError):
            if self._has_ended:  # the command was interrupted during this call
                return
            self._has_ended = "ended" in line
            if self._path is None:
                self._path = self._begin()
            if self._size + len(data) > MAX_BYTES:
                self._drop_oldest(self._path)
            self._append(self._path, data)

    def _begin(self) -> Path:
        from tpuctl.version import __version__

        folder = private_folder(_folder())
        for path in sorted(folder.glob("*.jsonl"))[: -(MAX_COMMANDS - 1) or None]:
            path.unlink(missing_ok=True)
        path = folder / f"{self._started:%Y%m%dT%H%M%S%f}-{os.getpid()}.jsonl"
        head = {
            "started": self._started.isoformat(timespec="milliseconds"),
            "version": __version__,
            "arguments": self._arguments,
        }
        self._append(path, f"{json.dumps(head, ensure_ascii=False)}\n".encode(errors="replace"))
        return path

    def _append(self, path: Path, data: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, data)
        finally:
            os.close(handle)
        self._size += len(data)

    def _drop_oldest(self, path: Path) -> None:
        """Keep the first line and the newer half of the calls."""
        head, *calls = read_file(path, 2 * MAX_BYTES).splitlines(keepends=True)
        newer = b"".join([head, *calls[len(calls) // 2 :]])
        path.write_bytes(newer)
        self._size = len(newer)


def read_records() -> Iterator[CommandRecord]:
    """The recorded commands, newest first. Unreadable ones are left out."""
    for path in sorted(_folder().glob("*.jsonl"), reverse=True):
        with suppress(*UNREADABLE):
            yield _read(path)


def _read(path: Path) -> CommandRecord:
    lines = read_file(path, 2 * MAX_BYTES).splitlines()
    head, last = json.loads(lines[0]), json.loads(lines[-1])
    end = last if "ended" in last else {}
    arguments, jobs = head["arguments"], end.get("jobs", ())
    exit_code = end.get("exit_code")
    return CommandRecord(
        path,
        tuple(map(_text, arguments)),
        datetime.fromisoformat(head["started"]).astimezone(UTC),
        _text(end.get("command", "")),
        None if exit_code is None else int(exit_code),
        tuple(
            (_text(cloud), _text(project), _text(name))
            for cloud, project, name in end.get("stacks", ())
        ),
        tuple(map(_text, jobs)),
        tuple(
            Diagnostic(**{name: _text(text) for name, text in diagnostic.items()})
            for diagnostic in end.get("diagnostics", ())
        ),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def last_failure(cloud: str, project: str, stack: str) -> CommandRecord | None:
    """The last command that changed this stack on this machine, if it failed without a job."""
    for record in read_records():
        if record.command in CHANGES and (cloud, project, stack) in record.stacks:
            has_failed = record.exit_code not in NO_FAILURE and record.diagnostics
            return record if has_failed and not record.jobs else None
    return None


def _folder() -> Path:
    return state_home() / "commands"


class _Texts(Repr):
    """Texts of requests and answers. Of large ones the beginning and the end."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 8
        self.maxlist = self.maxtuple = self.maxdict = 20
        self.maxstring = self.maxother = MAX_TEXT_LENGTH

    def repr_bytes(self, value: bytes, level: int) -> str:
        return f"<{len(value)} bytes>"


TEXTS = _Texts()
