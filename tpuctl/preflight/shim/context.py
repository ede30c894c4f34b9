"""What the watchers of one process share: what is asked, where to write, how to end."""

from __future__ import annotations

from typing import Any, NamedTuple

from .observation_writer import Writer
from .process_exit import ScriptExit
from .settings import Settings
from .steps import Steps
from .user_lines import UserLines

__all__ = ["Rehearsal", "Trace"]


class Trace(NamedTuple):
    """A function that was traced; its own name, and the shapes that it was traced for."""

    name: str
    where: Any = None
    shapes: list[Any] | None = None
    trains: bool = False


class Rehearsal:
    """One rehearsed process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.writer = Writer(settings.observations)
        self.user_lines = UserLines(settings.root)
        self.script_exit = ScriptExit(self.writer, settings.grace)
        self.steps = Steps(self.writer, self.script_exit, settings.steps)
        self.tensorflow: Any = None  # the module, once imported
        self.fit_depth = 0  # how many calls of Keras' fit are under way
        self.gradient_count = 0  # how often a gradient was asked for, in graphs and without

        # By the name that XLA knows a function by: what is known of it.
        self.traces: dict[str, Trace] = {}
        self.definitions: dict[str, Any] = {}  # the user's functions by name: where they stand
        self.pending_traces: list[dict[str, Any]] | None = (
            None  # traces that may be made anew for XLA
        )
        self._is_eager = False

    def record_eager(self) -> None:
        """Write, once, that gradients are computed outside of graphs."""
        if not self._is_eager:
            self._is_eager = True
            self.writer.write("eager", where=self.user_lines.current())

    @property
    def is_xla(self) -> bool:
        return self.settings.mode == "xla"

    @property
    def is_compile(self) -> bool:
        return self.settings.mode == "compile"
