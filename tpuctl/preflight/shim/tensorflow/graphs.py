"""Queries the TensorFlow graph under construction, and inserts marks that report its execution."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

MARK_NAME = "tpuctl_mark"  # the name of operations that the shim inserts
CONTROL_FLOW = ("WhileBodyFuncGraph", "WhileCondFuncGraph", "CondBranchFuncGraph")


class Graphs:
    """Queries and marks the graph under construction."""

    def __init__(self, tensorflow: Any) -> None:
        self.tensorflow = tensorflow
        self._ops = importlib.import_module("tensorflow.python.framework.ops")
        self._flow = importlib.import_module("tensorflow.python.ops.control_flow_util")
        self.mark_count = 0  # marks of steps that were inserted into graphs

    def is_eager(self) -> bool:
        return bool(self.tensorflow.executing_eagerly())

    def is_compiled(self) -> bool:
        """Whether XLA will compile the graph under construction."""
        graph = self._ops.get_default_graph()
        return bool(self._flow.GraphOrParentsInXlaContext(graph))

    def enclosing(self) -> Iterator[Any]:
        """The graph under construction and its outer graphs, innermost first."""
        if self.is_eager():
            return
        graph = self._ops.get_default_graph()
        while graph is not None:
            yield graph
            graph = getattr(graph, "outer_graph", None)

    def tag_training(self) -> None:
        """Tag the function being traced as one that computes gradients."""
        for graph in self.enclosing():
            graph._tpuctl_trains = True
            if type(graph).__name__ not in CONTROL_FLOW:
                return

    def tag_reading(self) -> None:
        """Tag all functions being traced as ones that read data from an iterator."""
        for graph in self.enclosing():
            graph._tpuctl_reads = True

    def is_looping(self) -> bool:
        """Whether the graph under construction runs once per element of a dataset or loop."""
        for graph in self.enclosing():
            if getattr(graph, "_tpuctl_reads", False):
                return True
            if str(getattr(graph, "name", "")).startswith("Dataset"):
                return True
            if type(graph).__name__ in CONTROL_FLOW[:1]:
                return True
        return False

    def mark(self, function: Callable[..., Any], *values: Any) -> Any:
        """Insert an operation that calls a function with the values each time it runs."""

        def call(*numbers: Any) -> None:
            function(*numbers)

        call.__name__ = MARK_NAME
        with self.tensorflow.name_scope(MARK_NAME):
            return self.tensorflow.numpy_function(call, list(values), [], name=MARK_NAME)
