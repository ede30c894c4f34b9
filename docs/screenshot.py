"""Turns what a terminal shows into a picture for the README.

tmux capture-pane -e -p | python docs/screenshot.py docs/images/demo.svg "make demo"
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

if __name__ == "__main__":
    target, title = sys.argv[1:]
    lines = sys.stdin.read().rstrip().splitlines()
    text = Text.from_ansi("\n".join(lines))
    width = max(line.cell_len for line in text.split())
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(text, soft_wrap=True)
    picture = console.export_svg(title=title)
    # Without the fonts that the picture would fetch: it is looked at where nothing is fetched.
    Path(target).write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S), "utf-8")
