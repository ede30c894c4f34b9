"""Finds the lines of a log in which a program reports why it ended."""

from __future__ import annotations

import re

LOG_TAIL = 1 << 16  # bytes searched at the end of a log
LAST_LINES = 40
MAX_MESSAGE_LINES = 5  # of an exception's message
MAX_TRAILING_LINES = 60  # after the last traceback, from threads and libraries shutting down
TRACEBACK = "Traceback (most recent call last):"
# The first line of a notebook's traceback, with the exception's name.
NOTEBOOK_TRACEBACK = re.compile(
    r"(\w+(?:Error|Exception|Interrupt))\s+Traceback \(most recent call last\)"
)
CHAINED_MARKERS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


def error_lines(log: bytes) -> list[str]:
    """Lines that may name the cause, best first: messages of the last traceback and its chain.

    Without a traceback at the end, the last lines in reverse order. Excludes tracebacks and
    warnings after which the program continued.
    """
    lines = _lines(log)
    messages = _messages(lines)
    if _is_final(lines, messages):
        return [
            line
            for start in reversed(messages)
            for line in lines[start : start + MAX_MESSAGE_LINES]
            if line.strip()
        ]
    return last_lines(log)


def final_message(log: bytes) -> str | None:
    """The log from the message of its final traceback on; None if it does not end in one."""
    lines = _lines(log)
    messages = _messages(lines)
    return "\n".join(lines[messages[-1] :]) if _is_final(lines, messages) else None


def last_lines(log: bytes) -> list[str]:
    """The last nonempty lines, in reverse order."""
    return [line for line in reversed(_lines(log)) if line.strip()][:LAST_LINES]


def _lines(log: bytes) -> list[str]:
    return log[-LOG_TAIL:].decode(errors="replace").replace("\r", "\n").split("\n")


def _is_final(lines: list[str], messages: list[int]) -> bool:
    return bool(messages) and len(lines) - messages[-1] <= MAX_TRAILING_LINES


def _messages(lines: list[str]) -> list[int]:
    """Line numbers of the messages of the last traceback and those chained to it."""
    messages: list[int] = []
    is_chained = False
    at = 0
    notebook = _notebook_message(lines)
    if notebook is not None:
        return [notebook]
    while at < len(lines):
        margin = lines[at].find(TRACEBACK)
        if margin < 0:
            is_chained = is_chained or any(chain in lines[at] for chain in CHAINED_MARKERS)
            at += 1
            continue
        prefix = lines[at][:margin]  # for output of another process
        at += 1
        while at < len(lines) and _is_frame(lines[at].removeprefix(prefix)):
            at += 1
        if at < len(lines):
            messages = [*messages, at] if is_chained else [at]
        is_chained = False
        at += 1
    return messages


def _notebook_message(lines: list[str]) -> int | None:
    """The line number of the message of a notebook's last traceback."""
    headers = (NOTEBOOK_TRACEBACK.match(line) for line in reversed(lines))
    header = next((match for match in headers if match is not None), None)
    if header is None:
        return None
    places = [at for at, line in enumerate(lines) if line.startswith(f"{header[1]}: ")]
    return places[-1] if places else None


def _is_frame(line: str) -> bool:
    return not line.strip() or line.startswith((" ", "\t"))
