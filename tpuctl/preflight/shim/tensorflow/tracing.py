"""Observes the tracing of functions, with argument shapes and the user's line."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from ....simulated_tpu.script_calls import call_script
from ..observation.context import Rehearsal, Trace
from .compile_failures import Refusals
from .graphs import Graphs
from .tensors import shape_of

MODULES = (
    "tensorflow.python.eager.polymorphic_function.concrete_function",
    "tensorflow.python.eager.polymorphic_function.monomorphic_function",
    "tensorflow.python.eager.function",
)


def install(rehearsal: Rehearsal, graphs: Graphs, refusals: Refusals) -> None:
    """Observe the creation of graphs and concrete functions."""
    func_graph = importlib.import_module("tensorflow.python.framework.func_graph").FuncGraph
    original = func_graph.__init__

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        call_script(original, self, *arguments, **keywords)
        rehearsal.writer.attempt("a graph", refusals.add_graph, self)

    func_graph.__init__ = __init__
    for name in MODULES:
        try:
            kind = importlib.import_module(name).ConcreteFunction
        except (ImportError, AttributeError):
            continue
        _watch(rehearsal, kind)
        return


def _watch(rehearsal: Rehearsal, kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        call_script(original, self, *arguments, **keywords)
        rehearsal.writer.attempt("a trace", _record, rehearsal, self)

    kind.__init__ = __init__


def _record(rehearsal: Rehearsal, concrete: Any) -> None:
    """Remember the trace of a function, and write it if it computes gradients."""
    graph = concrete.graph
    captured = len(graph.internal_captures)
    inputs = list(graph.inputs)
    argument_shapes = [shape_of(tensor) for tensor in inputs[: len(inputs) - captured]]
    shapes = [shape for shape in argument_shapes if shape[0] not in ("resource", "variant")]
    name = str(graph.name)
    where = rehearsal.definitions.get(name) or rehearsal.user_lines.current()
    key = concrete.name.decode() if isinstance(concrete.name, bytes) else str(concrete.name)
    trains = bool(getattr(graph, "_tpuctl_trains", False))
    trace = Trace(name, where, shapes, trains)
    rehearsal.traces[key.removeprefix("__inference_")] = trace
    if not trains:
        return
    fields = {"function": name, "where": where, "shapes": shapes}
    if rehearsal.pending_traces is not None:
        rehearsal.pending_traces.append(fields)
    else:
        rehearsal.writer.write("traced", **fields)
