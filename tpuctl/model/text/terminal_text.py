"""Text of machines, buckets and Google's answers, made safe for terminals.

What a job writes may reach a terminal through its log, its records, or an error that quotes it. An
escape sequence there could set the clipboard or the title, or overwrite what was printed before;
a bidirectional control shows a text in another order than it has.
"""

from __future__ import annotations

import re

BIDI = "\u061c\u202a-\u202e\u2066-\u2069"
# Sequences of ESC: CSI; strings up to their terminator (OSC, DCS, SOS, PM, APC); two characters.
SEQUENCE = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
CHARACTERS = rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{BIDI}]"
CONTROL = re.compile(f"{SEQUENCE}|{CHARACTERS}")
COLOR_OR_CONTROL = re.compile(rf"(\x1b\[[0-9;:]*m)|{SEQUENCE}|{CHARACTERS}")
UNESCAPED_IN_JSON = re.compile(rf"[\x7f-\x9f\u2028\u2029{BIDI}]")

# In UTF-8, of a job's output: colors, and erasing to the end of a line, stay; so do backspaces and
# carriage returns, with which progress bars are drawn.
OUTPUT_SEQUENCE = (
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    rb"|\x1b[ -/]*[0-Z\\^-~]"
)
OUTPUT_CONTROL = re.compile(
    rb"(\x1b\[[0-9;:]*m|\x1b\[[0-2]?K)|" + OUTPUT_SEQUENCE + rb"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)
INCOMPLETE = re.compile(
    rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)?|\xc2|\xd8|\xe2[\x80\x81]?)\Z"
)
MAX_SEQUENCE_BYTES = 1 << 16


def without_control_characters(text: str, *, keeps_colors: bool = False) -> str:
    """The text without escape sequences and control characters, except tabs and line feeds."""
    if text.isprintable():  # neither control nor format characters
        return text
    if keeps_colors:
        return COLOR_OR_CONTROL.sub(lambda match: match[1] or "", text)
    return CONTROL.sub("", text)


def escape_control_characters(json_text: str) -> str:
    """The same JSON, with the control characters escaped that JSON allows in strings."""
    return UNESCAPED_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)


class JobOutputFilter:
    """Removes from a job's output, for a terminal, what could do more than color it."""

    def __init__(self) -> None:
        self._rest = b""  # the beginning of a sequence, whose end is still to arrive

    def feed(self, data: bytes) -> bytes:
        data = self._rest + data
        start = INCOMPLETE.search(data, max(0, len(data) - MAX_SEQUENCE_BYTES))
        end = len(data) if start is None else start.start()
        self._rest = data[end:]
        return OUTPUT_CONTROL.sub(lambda match: match[1] or b"", data[:end])

    def finish(self) -> bytes:
        rest, self._rest = self._rest, b""
        return OUTPUT_CONTROL.sub(lambda match: match[1] or b"", rest)
