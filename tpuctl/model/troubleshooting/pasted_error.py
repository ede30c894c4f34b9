"""Explains a pasted error message, with the fix.

A message is identified by `KnownError.match` anywhere, or by `KnownError.lines` in a program's
final output. A bare status such as INTERNAL or UNAVAILABLE identifies nothing: JAX and others print
them too. For unknown messages the hint says where to look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tpuctl.errors import NotFound
from tpuctl.model.logs.log_tail_signatures import error_lines, final_message, last_lines
from tpuctl.model.text.terminal_text import without_control_characters
from tpuctl.model.troubleshooting.known_errors import Fault, KnownError, extract_facts, table

MAX_TEXT_LENGTH = 1 << 18  # characters searched at the end
MAX_LINE_LENGTH = 200
MIN_TERMINAL_WIDTH = 60  # shortest line that a terminal may have wrapped
# Line prefixes of frames and quotes.
MARGIN = re.compile(r"(?m)^[ \t]*(?:[│|>╷╵]+[ \t]?)+")
# Line continuations in quoted YAML strings.
CONTINUED = re.compile(r"\\\n[ \t]*\\?")
# Errors that only report the failure of another process.
SECONDARY_FAILURE = re.compile(
    r"CalledProcessError|ProcessExitedException|ProcessRaisedException|BrokenProcessPool"
    r"|SystemExit|queue\.Empty|non-zero exit status|ChildFailedError|terminated with exit code"
)
# Lines that report any error.
COMPLAINT = re.compile(
    r"(?m)^\W{0,3}(?:ERROR|FATAL|Error|F\d{4} |\d{4}-\d\d-\d\d \S+ F )[^\n]*"
    r"|^[^\n]*\b\w+(?:Error|Exception): [^\n]*"
)


@dataclass(frozen=True)
class Pasted:
    """The explanation of a message."""

    name: str  # of the known error
    kind: str  # its group, as a title
    summary: str
    cause: str
    hint: str
    fault: Fault | None  # who is responsible if it ends a job
    line: str  # the matching line, shortened


def explain_text(text: str, context: Mapping[str, str]) -> Pasted:
    """Explain a message. Raises NotFound if it is unknown.

    `context` holds the stack's project, zone and so on; names in the text take precedence.
    """
    text = without_control_characters(text[-MAX_TEXT_LENGTH:].replace("\r", "\n"))
    text = CONTINUED.sub("", MARGIN.sub("", text))
    match = _find(text)
    if match is None:
        raise NotFound("Unknown error message", _shortened(text), hint=_unknown_error_hint(text))
    known_error, line = match
    return Pasted(
        known_error.name,
        table().kinds[known_error.kind],
        known_error.summary,
        known_error.cause,
        known_error.hint({**context, **extract_facts(line, text)}),
        known_error.fault,
        _shortened(line),
    )


def _find(text: str) -> tuple[KnownError, str] | None:
    """The known error in the text, and the line that matches."""
    for region in _regions(text):
        match = _by_match(region) or _by_lines(region)
        if match is not None:
            return match
    return _by_weak_match(text) or table().match_general(_final_lines(text))


def _final_lines(text: str) -> Iterator[str]:
    log = text.encode(errors="replace")
    yield from error_lines(log)
    end = final_message(log)
    if end is not None and SECONDARY_FAILURE.search(end):
        yield from last_lines(log)


def _regions(text: str) -> Iterator[str]:
    """Parts of the text, most reliable first.

    A final traceback names the cause: earlier errors do not count, unless it only reports the
    failure of another process.
    """
    log = text.encode(errors="replace")
    end = final_message(log)
    if end is not None:
        yield "\n".join(error_lines(log))
        yield end
    if end is None or SECONDARY_FAILURE.search(end):
        yield text


def _by_match(text: str) -> tuple[KnownError, str] | None:
    texts = {whole: whole.lower() for whole in (text, _joined(text))}  # often the same
    for known_error in table().errors:
        if known_error.weak:
            continue
        for whole, lowered in texts.items():
            match = known_error.find(whole, lowered)
            if match is not None:
                return known_error, _line_at(whole, match)
    return None


def _joined(text: str) -> str:
    """Rejoin lines that a terminal wrapped, perhaps in the middle of a word."""
    joined: list[str] = []
    is_cut = False
    for line in text.split("\n"):
        if is_cut and line and not line[0].isspace():
            joined[-1] += line
        else:
            joined.append(line)
        is_cut = len(line) >= MIN_TERMINAL_WIDTH
    return "\n".join(joined)


def _by_lines(text: str) -> tuple[KnownError, str] | None:
    for line in error_lines(text.encode(errors="replace")):
        for known_error in table().errors:
            if known_error.general or known_error.lines is None:
                continue
            if known_error.lines.search(line):
                return known_error, line
    return None


def _by_weak_match(text: str) -> tuple[KnownError, str] | None:
    """Match weak errors, which count only if there is no other error."""
    joined = _joined(text)
    lowered = joined.lower()
    for known_error in table().errors:
        match = known_error.find(joined, lowered) if known_error.weak else None
        if known_error.match is not None and match is not None:
            complaints = (complaint[0] for complaint in COMPLAINT.finditer(joined))
            if all(known_error.match.search(complaint) for complaint in complaints):
                return known_error, _line_at(joined, match)
    return None


def _line_at(text: str, match: re.Match[str]) -> str:
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.start())
    return text[start : end if end >= 0 else len(text)].strip() or match[0].strip()


def _shortened(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= MAX_LINE_LENGTH else f"{line[:MAX_LINE_LENGTH]}…"


# Hints by the origin of the message; the first match counts.
ORIGIN_HINTS = (
    (
        r"torch_xla|_XLAC|PJRT_DEVICE|xla_model|xmp\.spawn",
        "This message is from PyTorch/XLA. Search its issues:\n    "
        "https://github.com/pytorch/xla/issues",
    ),
    (
        r"jaxlib|XlaRuntimeError|\bjax\b|libtpu|pjrt",
        "This message is from JAX or libtpu. Search its issues:\n"
        "    https://github.com/jax-ml/jax/issues\nlibtpu's logs on a worker:\n"
        "    tpuctl ssh 0 -- ls /tmp/tpu_logs",
    ),
    (
        r"tensorflow|\bkeras\b",
        "This message is from TensorFlow. Search its issues:\n"
        "    https://github.com/tensorflow/tensorflow/issues",
    ),
    (
        r"\(gcloud\.",
        "This message is from gcloud. Repeat the command with --verbosity=debug, or see its log:\n"
        "    gcloud info --show-log",
    ),
    (
        r"googleapis\.com|google\.api_core|googleapi: Error|Cloud TPU received|google\.rpc",
        "This message is from a Google API. Cloud TPU troubleshooting:\n"
        "    https://docs.cloud.google.com/tpu/docs/troubleshooting/trouble-tf\n"
        "Service status:\n    https://status.cloud.google.com",
    ),
)


def _unknown_error_hint(text: str) -> str:
    origin_hint = next((hint for pattern, hint in ORIGIN_HINTS if re.search(pattern, text)), "")
    general_hint = (
        "Include the whole message, with the lines before it. To check the project:\n"
        "    tpuctl doctor\nTo explain the latest job's failure:\n    tpuctl explain"
    )
    return f"{origin_hint}\n{general_hint}" if origin_hint else general_hint
