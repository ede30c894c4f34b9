"""State that the hooks of one process share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ....simulated_tpu.observer import Observer
from .observation_writer import Writer
from .process_exit import ScriptExit
from .settings import Settings
from .steps import Steps
from .user_lines import UserLines, Where

MAX_READS = 200  # of values on the host that are recorded


class Trace(NamedTuple):
    """A trace of a function: its name, and the shapes of its arguments."""

    name: str
    where: Any = None
    shapes: list[Any] | None = None
    trains: bool = False


class RehearsalObserver(Observer):
    """Writes what the stubs of a TPU report."""

    def __init__(self, writer: Writer, user_lines: UserLines) -> None:
        self.attempt = writer.attempt  # type: ignore[method-assign]
        self.write = writer.write  # type: ignore[method-assign]
        self.line = user_lines.current  # type: ignore[method-assign]


class Rehearsal:
    """One rehearsed process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.writer = Writer(settings.observations)
        self.user_lines = UserLines(settings.root)
        self.observer = RehearsalObserver(self.writer, self.user_lines)
        self.script_exit = ScriptExit(self.writer, settings.grace)
        self.script_exit.user_lines = self.user_lines
        self.steps = Steps(self.writer, self.script_exit, settings.steps)
        self.tensorflow: Any = None  # the module, once imported
        self.report_jax: Callable[[], None] = lambda: None  # writes, once, that JAX trains
        self.report_torch: Callable[[], None] = lambda: None  # the same for PyTorch
        self.fit_depth = 0  # nesting of calls of Keras' fit
        self.is_placed_softly = False  # whether the script enabled soft placement
        self.gradient_count = 0  # calls that computed gradients, eagerly or in graphs

        self.traces: dict[str, Trace] = {}  # by XLA's name of the function
        self.definitions: dict[str, Any] = {}  # lines of the user's functions, by name
        self.pending_traces: list[dict[str, Any]] | None = None  # may be retraced with XLA
        self._is_eager = False
        self._reads: set[Any] = set()  # recorded lines and steps

    def record_read(self, where: Where | None) -> None:
        """Write, once for a line and step, that the script read a value on the host."""
        step = self.steps.count
        if not step or where is None or len(self._reads) >= MAX_READS:
            return
        key = (where["file"], where["line"], step)
        if key not in self._reads:
            self._reads.add(key)
            self.writer.write("fetched", where=where, after_step=step)

    @property
    def is_observed(self) -> bool:
        """Whether this is the script's main thread, before it receives SIGTERM."""
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and not (self.writer.is_forked() or self.script_exit.is_requested)

    def record_eager(self) -> None:
        """Write, once, that gradients are computed eagerly."""
        if not self._is_eager:
            self._is_eager = True
            self.writer.write("eager", where=self.user_lines.current())

    @property
    def is_xla(self) -> bool:
        return self.settings.mode == "xla"

    @property
    def is_compile(self) -> bool:
        return self.settings.mode == "compile"
