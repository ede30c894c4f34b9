"""How long a script waits for its data, eagerly and within graphs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from .context import Rehearsal
from .graphs import Graphs

__all__ = ["install"]

# Where an iterator's next element is asked for, under all of its interfaces.
ITERATOR_METHODS = (
    ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator", "_next_internal"),
    ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator", "get_next_as_optional"),
    ("tensorflow.python.distribute.input_lib", "DistributedIteratorBase", "get_next"),
)


def install(rehearsal: Rehearsal, graphs: Graphs) -> None:
    """Take the time of every next element."""
    for module, kind, name in ITERATOR_METHODS:
        rehearsal.writer.attempt("iterators", _watch, rehearsal, graphs, module, kind, name)


def _watch(rehearsal: Rehearsal, graphs: Graphs, module: str, kind: str, name: str) -> None:
    holder = getattr(importlib.import_module(module), kind)
    original = getattr(holder, name)
    steps = rehearsal.steps
    has_graphs = name != "get_next"  # a distributed one asks others, which are marked

    @functools.wraps(original)
    def timed_next(self: Any, *arguments: Any, **keywords: Any) -> Any:
        next_element = functools.partial(original, self, *arguments, **keywords)
        if rehearsal.writer.is_foreign():
            return next_element()
        if graphs.is_eager():
            steps.begin_wait()
            try:
                element = next_element()
            except BaseException:
                steps.discard()  # the data is at its end: no step follows from it
                raise
            steps.end_wait()
            return element
        rehearsal.writer.attempt("iterators", graphs.mark_reading)
        return _next_with_marks(rehearsal, graphs, next_element) if has_graphs else next_element()

    setattr(holder, name, timed_next)


def _next_with_marks(rehearsal: Rehearsal, graphs: Graphs, get_next: Callable[[], Any]) -> Any:
    """Ask within a graph, with marks before and after it."""
    tensorflow, steps = graphs.tensorflow, rehearsal.steps
    if graphs.is_compiled():
        return get_next()
    before = rehearsal.writer.attempt("iterators", graphs.mark, steps.begin_wait)
    with tensorflow.control_dependencies([] if before is None else [before]):
        element = get_next()

    def after() -> None:
        leaves = tensorflow.nest.flatten(element, expand_composites=True)
        with tensorflow.control_dependencies([leaf for leaf in leaves if hasattr(leaf, "op")]):
            graphs.mark(steps.end_wait)

    rehearsal.writer.attempt("iterators", after)
    return element
