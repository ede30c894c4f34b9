"""What an error text means that somebody pasted, with what mends it.

A text is known by what identifies its condition (`Known.match`), or by what a program's last
words begin with (`Known.lines`). The bare words of a status, as INTERNAL or UNAVAILABLE, identify
nothing: JAX and others write them too. What is not known is said to be, with where to look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tpuctl.errors import NotFound
from tpuctl.model.explanation import CONTROL
from tpuctl.model.known_errors import Fault, KnownError, extract_facts, table
from tpuctl.model.log_tail_signatures import error_lines, final_message

__all__ = ["Pasted", "explain_text"]

MAX_TEXT_LENGTH = 1 << 18  # characters of the end that are looked at
MAX_LINE_LENGTH = 200
MIN_TERMINAL_WIDTH = 60  # characters of a terminal that cuts lines
# What frames and quotes put before each line.
MARGIN = re.compile(r"(?m)^[ \t]*(?:[│|>╷╵]+[ \t]?)+")
# Where a text between quotes goes on in the next line, as YAML writes it.
CONTINUED = re.compile(r"\\\n[ \t]*\\?")
# Ends that tell only that something else has ended.
SECONDARY_FAILURE = re.compile(
    r"CalledProcessError|ProcessExitedException|ProcessRaisedException|BrokenProcessPool"
    r"|SystemExit|queue\.Empty|non-zero exit status|ChildFailedError|terminated with exit code"
)
# Lines that say that something went wrong, whatever it is.
COMPLAINT = re.compile(
    r"(?m)^\W{0,3}(?:ERROR|FATAL|Error|F\d{4} |\d{4}-\d\d-\d\d \S+ F )[^\n]*"
    r"|^[^\n]*\b\w+(?:Error|Exception): [^\n]*"
)


@dataclass(frozen=True)
class Pasted:
    """What the text means."""

    name: str  # of the known error
    kind: str  # its group, as a title
    summary: str
    why: str
    hint: str
    fault: Fault | None  # whose it is where it ends a job
    line: str  # the line of the text that gives it away, shortened


def explain_text(text: str, context: Mapping[str, str]) -> Pasted:
    """Raises NotFound for what is not known. `around` is the stack's project, zone and such.

    What the text names goes before what is so of the stack.
    """
    text = CONTROL.sub("", text[-MAX_TEXT_LENGTH:].replace("\r", "\n"))
    text = CONTINUED.sub("", MARGIN.sub("", text))
    match = _find(text)
    if match is None:
        raise NotFound("Not a known error", _shortened(text), hint=_unknown_error_hint(text))
    known_error, line = match
    return Pasted(
        known_error.name,
        table().kinds[known_error.kind],
        known_error.summary,
        known_error.why,
        known_error.hint({**context, **extract_facts(line, text)}),
        known_error.fault,
        _shortened(line),
    )


def _find(text: str) -> tuple[KnownError, str] | None:
    """The entry that the text identifies, and the line that does."""
    for region in _regions(text):
        match = _by_match(region) or _by_lines(region)
        if match is not None:
            return match
    return _by_weak_match(text)


def _regions(text: str) -> Iterator[str]:
    """Parts of the text in the order in which they are believed.

    A program that ended with a traceback says there why it ended: what it survived before does
    not count, unless the end only passes another's on.
    """
    log = text.encode(errors="replace")
    end = final_message(log)
    if end is not None:
        yield "\n".join(error_lines(log))
        yield end
    if end is None or SECONDARY_FAILURE.search(end):
        yield text


def _by_match(text: str) -> tuple[KnownError, str] | None:
    joined = _joined(text)
    for known_error in table().errors:
        if known_error.weak or known_error.match is None:
            continue
        for whole in (text, joined):
            match = known_error.match.search(whole)
            if match is not None:
                return known_error, _line_at(whole, match)
    return None


def _joined(text: str) -> str:
    """Lines that a terminal has cut, perhaps in the middle of a word, put together again."""
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
            if known_error.lines is not None and known_error.lines.search(line):
                return known_error, line
    return None


def _by_weak_match(text: str) -> tuple[KnownError, str] | None:
    """What programs say in passing: the reason only where nothing else complains."""
    joined = _joined(text)
    for known_error in table().errors:
        match = (
            known_error.match.search(joined)
            if known_error.weak and known_error.match is not None
            else None
        )
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


# Where to look, by whose words they are; the first that fits.
ORIGIN_HINTS = (
    (
        r"torch_xla|_XLAC|PJRT_DEVICE|xla_model|xmp\.spawn",
        "These are words of PyTorch/XLA. Who else met them:\n    https://github.com/pytorch/xla/issues",
    ),
    (
        r"jaxlib|XlaRuntimeError|\bjax\b|libtpu|pjrt",
        "These are words of JAX or libtpu. Who else met them:\n"
        "    https://github.com/jax-ml/jax/issues\nlibtpu's own logs on a worker:\n"
        "    tpuctl ssh 0 -- ls /tmp/tpu_logs",
    ),
    (
        r"tensorflow|\bkeras\b",
        "These are words of TensorFlow. Who else met them:\n"
        "    https://github.com/tensorflow/tensorflow/issues",
    ),
    (
        r"\(gcloud\.",
        "These are words of gcloud. Repeat the command with --verbosity=debug, or see its log:\n"
        "    gcloud info --show-log",
    ),
    (
        r"googleapis\.com|google\.api_core|googleapi: Error|Cloud TPU received|google\.rpc",
        "This is an answer of Google's. What is known of Cloud TPU's:\n"
        "    https://docs.cloud.google.com/tpu/docs/troubleshooting/trouble-tf\n"
        "Whether something is down:\n    https://status.cloud.google.com",
    ),
)


def _unknown_error_hint(text: str) -> str:
    origin_hint = next((hint for pattern, hint in ORIGIN_HINTS if re.search(pattern, text)), "")
    general_hint = (
        "Paste more of it: the whole message, with the lines before. Whether all is well with the "
        "project:\n    tpuctl doctor\nWhy the latest job failed:\n    tpuctl explain"
    )
    return f"{origin_hint}\n{general_hint}" if origin_hint else general_hint
