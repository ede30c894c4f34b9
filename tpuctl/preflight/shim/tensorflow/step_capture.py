"""Captures the training step for lowering, instead of executing it."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

from ..observation.context import Rehearsal


def capture_step(
    rehearsal: Rehearsal, function: Any, arguments: Any, keywords: Any, replicas: int
) -> NoReturn:
    """Call `lowering_session.lower_step` with the step, then exit the script.

    `function` runs on one replica. Its arguments are values, tensors of the enclosing graph, or
    distributed values.
    """
    writer = rehearsal.writer
    name = getattr(getattr(function, "python_function", function), "__name__", "step")
    where = rehearsal.user_lines.definition(function) or rehearsal.user_lines.current()
    writer.write("captured", function=name, where=where)

    def lower_step() -> None:
        session = importlib.import_module(f"{__package__}.lowering_session")
        with rehearsal.tensorflow.init_scope():
            is_soft = rehearsal.is_placed_softly
            session.lower_step(function, arguments, keywords, replicas, is_soft=is_soft)

    writer.attempt("capturing the training step", lower_step)
    rehearsal.script_exit.exit_now()
