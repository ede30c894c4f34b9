"""Measures how long a script waits for data, eagerly and in graphs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ..observation.context import Rehearsal
from .graphs import Graphs

# The methods that return an iterator's next element, for all of its interfaces.
ITERATOR_METHODS = (
    ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator", "_next_internal"),
    ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator", "get_next_as_optional"),
    ("tensorflow.python.distribute.input_lib", "DistributedIteratorBase", "get_next"),
)


def install(rehearsal: Rehearsal, graphs: Graphs) -> None:
    """Measure the wait for every element."""
    for module, kind, name in ITERATOR_METHODS:
        rehearsal.writer.attempt("iterators", _watch, rehearsal, graphs, module, kind, name)


def _watch(rehearsal: Rehearsal, graphs: Graphs, module: str, kind: str, name: str) -> None:
    holder = getattr(importlib.import_module(module), kind)
    original = getattr(holder, name)
    steps = rehearsal.steps
    has_graphs = name != "get_next"  # a distributed iterator calls others, which have marks

    @functools.wraps(original)
    def timed_next(self: Any, *arguments: Any, **keywords: Any) -> Any:
        next_element = functools.partial(original, self, *arguments, **keywords)
        if rehearsal.writer.is_forked():
            return next_element()
        if graphs.is_eager():
            steps.begin_wait()
            try:
                element = next_element()
            except BaseException:
                steps.discard()  # end of the data: no step follows
                raise
            steps.end_wait()
            return element
        rehearsal.writer.attempt("iterators", graphs.tag_reading)
        return _next_with_marks(rehearsal, graphs, next_element) if has_graphs else next_element()

    setattr(holder, name, timed_next)


def _next_with_marks(rehearsal: Rehearsal, graphs: Graphs, get_next: Callable[[], Any]) -> Any:
    """Get the next element in a graph, with marks before and after it."""
    tensorflow, steps = graphs.tensorflow, rehearsal.steps
    if graphs.is_compiled():
        return get_next()
    before = rehearsal.writer.attempt("iterators", graphs.mark, steps.begin_wait)
    with tensorflow.control_dependencies([] if before is None else [before]):
        element = get_next()

    def mark_end() -> None:
        leaves = tensorflow.nest.flatten(element, expand_composites=True)
        with tensorflow.control_dependencies([leaf for leaf in leaves if hasattr(leaf, "op")]):
            graphs.mark(steps.end_wait)

    rehearsal.writer.attempt("iterators", mark_end)
    return element
