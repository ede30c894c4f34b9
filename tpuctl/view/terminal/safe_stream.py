"""What `print` writes, without control characters: text from elsewhere may be in it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from tpuctl.model.text.terminal_text import without_control_characters


class SafeStream:
    """A text stream that drops control characters, except colors. `buffer` is unfiltered."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # the name under which rich looks for it

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(without_control_characters(text, keeps_colors=True))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def safe_streams() -> Iterator[None]:
    """Filter what is printed on stdout and stderr."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, SafeStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
