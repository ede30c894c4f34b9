"""What rich draws, without control characters: text from elsewhere may be in it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tpuctl.model.text.terminal_text import without_control_characters


class SafeConsole(Console):
    """A console whose texts have no control characters; it moves the cursor itself."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=without_control_characters(segment.text))
