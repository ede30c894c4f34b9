"""Observes functions that fail to trace or compile, with the operation and the user's line."""

from __future__ import annotations

import importlib
import re
import weakref
from typing import Any

from ..observation.context import Rehearsal
from .graphs import CONTROL_FLOW, MARK_NAME

# Parts of messages of XLA and its lowering; other errors are bugs of the script.
XLA = re.compile(
    r"XLA|tf2xla|_XlaMustCompile|must be a compile-time constant|Detected unsupported operations"
)
UNSUPPORTED = re.compile(
    r"(?P<type>\w+) \(No registered '\w+' OpKernel[^{]*\{\{node (?P<name>[^}]+)"
)
GRAPH = re.compile(r"when trying to compile graph (?:__inference_)?(?P<name>\w+)\[")
DEVICE = "XLA_CPU_JIT"
NODE = re.compile(r"\{\{node (?P<name>[^}]+)\}\}")
FUNCTION = re.compile(r"__inference_(?P<name>\w+?)_\d+\b")
# Raised during tracing by code that cannot be part of a graph.
TRACING = ("OperatorNotAllowedInGraphError", "SymbolicTensorError", "InaccessibleTensorError")
EAGER_ONLY = re.compile(
    r"has no attribute 'numpy'|numpy\(\) is only available|a symbolic (?:tf\.)?Tensor"
    r"|NotImplementedError: Cannot convert a symbolic"
    r"|is not allowed: AutoGraph|is not allowed in Graph"
)


class Refusals:
    """Writes each refusal once, in the innermost of our wrappers."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.graphs: list[Any] = []  # weak references to traced graphs

    def add_graph(self, graph: Any) -> None:
        """Remember a graph, to find operations by name."""
        self.graphs.append(weakref.ref(graph))

    def record(self, error: Exception, function: Any) -> None:
        """Write an observation if an exception is a refusal."""
        if getattr(error, "_tpuctl_recorded", False):
            return
        message = str(error)
        if not self._is_refusal(error, message):
            return
        error._tpuctl_recorded = True  # type: ignore[attr-defined]
        operations = self._operations(message)
        lines = self.rehearsal.user_lines
        where = next((item["where"] for item in operations if item["where"]), None)
        where = where or lines.of_exception(error) or lines.definition(function) or lines.current()
        self.rehearsal.writer.write(
            "refused",
            function=_function_name(message, function),
            where=where,
            message=f"{type(error).__name__}: {message}"[:20000],
            operations=operations,
            is_soft=self.rehearsal.is_placed_softly,
        )

    def _is_refusal(self, error: Exception, message: str) -> bool:
        kind = type(error).__name__
        if kind in TRACING:
            return True
        if kind in ("AttributeError", "TypeError", "NotImplementedError", "ValueError"):
            return bool(EAGER_ONLY.search(f"{kind}: {message}"))
        return type(error).__module__.startswith("tensorflow") and bool(XLA.search(message))

    def _operations(self, message: str) -> list[dict[str, Any]]:
        """The operations that XLA does not have, else those named in a message."""
        graph = self._compiled_graph(message)
        if graph is not None:
            module = importlib.import_module(f"{__package__}.unsupported_operations")
            lines = self.rehearsal.user_lines
            unsupported: list[dict[str, Any]] = self.rehearsal.writer.attempt(
                "unsupported operations", module.unsupported_operations, graph, DEVICE, lines
            )
            if unsupported:
                return unsupported
        names_by_type = [(match["type"], match["name"]) for match in UNSUPPORTED.finditer(message)]
        if not names_by_type:
            names_by_type = [("", match["name"]) for match in NODE.finditer(message)]
        operations: dict[tuple[str, Any], dict[str, Any]] = {}
        for kind, name in names_by_type:
            if MARK_NAME in name:
                continue
            operation = self._operation(kind, name)
            where = operation and self.rehearsal.user_lines.of_operation(operation)
            label = kind or (operation.type if operation is not None else name)
            line = (where["file"], where["line"]) if where else None
            operations.setdefault((label, line), {"operation": label, "where": where})
        if len(operations) == 1:
            for failure in operations.values():
                failure["where"] = failure["where"] or self.rehearsal.user_lines.in_message(message)
        return list(operations.values())

    def _compiled_graph(self, message: str) -> Any:
        """The traced function that a message says XLA could not compile, or a part of it."""
        match = GRAPH.search(message)
        traced = filter(None, (reference() for reference in reversed(self.graphs)))
        # TensorFlow adds numbers to a graph's name.
        candidates: list[Any] = [
            each for each in traced if match and f"{match['name']}_".startswith(f"{each.name}_")
        ]
        if not candidates:
            return None
        graph = max(candidates, key=lambda each: len(each.name))
        while type(graph).__name__ in CONTROL_FLOW and graph.outer_graph is not None:
            graph = graph.outer_graph
        return graph

    def _operation(self, kind: str, name: str) -> Any:
        """Find an operation in the traced graphs by name, or by its last part if inlined."""
        last = name.rsplit("/", 1)[-1]
        candidates = []
        for reference in reversed(self.graphs):
            graph = reference()
            if graph is None:
                continue
            for operation in graph.get_operations():
                if kind and operation.type != kind:
                    continue
                if operation.name == name:
                    return operation
                if operation.name.rsplit("/", 1)[-1] == last:
                    candidates.append(operation)
        return candidates[0] if candidates else None


def _function_name(message: str, function: Any) -> str:
    match = FUNCTION.search(message)
    if match is not None:
        return match["name"]
    function = getattr(function, "python_function", function)
    return str(getattr(function, "__name__", type(function).__name__))
