"""Lines of source files that are shown or recognized."""

from __future__ import annotations

import tokenize
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Sources:
    """The lines of files, each read once."""

    _lines: dict[Path, list[str]] = field(default_factory=dict)

    def line(self, path: Path, number: int) -> str | None:
        """The line, decoded as by Python; None if it does not exist or cannot be read."""
        if path not in self._lines:
            try:
                with tokenize.open(path) as source:
                    self._lines[path] = source.read().split("\n")
            except (OSError, SyntaxError, ValueError):
                self._lines[path] = []
        lines = self._lines[path]
        return lines[number - 1] if 0 < number <= len(lines) else None
