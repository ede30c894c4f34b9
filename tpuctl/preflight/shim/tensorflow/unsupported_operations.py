"""Finds the operations of a traced function that XLA does not have, with the user's lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorflow.python.framework import kernels  # type: ignore[import-untyped, import-not-found, unused-ignore]

from ..observation.user_lines import UserLines, Where
from .graphs import MARK_NAME
from .pure_function import called_graphs, required_operations

Registry = dict[str, list[dict[str, frozenset[int]]]]
# Not in the kernel registry: inputs, outputs and control dependencies.
STRUCTURAL = ("Placeholder", "_Arg", "_Retval", "NoOp")


def unsupported_operations(graph: Any, device: str, lines: UserLines) -> list[dict[str, Any]]:
    """The operations of a graph, and of those that it calls, that XLA's device does not have.

    The device is XLA's name of it, such as XLA_TPU_JIT. Each operation is listed once for a line;
    its gradient, which has the line that takes gradients, is none of its own.
    """
    operations = list(_unsupported(graph, lines, _registry(device), None))
    types = {operation.type for operation, _ in operations if not _is_gradient(operation)}
    items = [
        {"operation": operation.type, "where": where}
        for operation, where in operations
        if not _is_gradient(operation) or operation.type not in types
    ]
    return list({repr(item): item for item in items}.values())


def _is_gradient(operation: Any) -> bool:
    return str(operation.name).startswith(("gradient_tape/", "gradients/"))


def _registry(device: str) -> Registry:
    """The device's kernels: for each operation, the allowed types of each kernel's attributes."""
    registry: Registry = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type == device:
            bounds = {
                constraint.name: frozenset(constraint.allowed_values.list.type)
                for constraint in kernel.constraint
            }
            registry.setdefault(kernel.op, []).append(bounds)
    return registry


def _unsupported(
    graph: Any, lines: UserLines, registry: Registry, caller: Where | None
) -> Iterator[tuple[Any, Where | None]]:
    """Operations without a kernel, each with the user's line or its caller's.

    A call, branch or loop is one only if nothing that it calls is.
    """
    for operation in required_operations(graph):
        if operation.type in STRUCTURAL or MARK_NAME in operation.name:
            continue
        where = lines.of_operation(operation) or caller
        called = [
            inner
            for body in called_graphs(operation)
            for inner in _unsupported(body, lines, registry, where)
        ]
        yield from called
        if not called and not _is_supported(operation, registry):
            yield operation, where


def _is_supported(operation: Any, registry: Registry) -> bool:
    attributes = operation.node_def.attr

    def fits(bounds: dict[str, frozenset[int]]) -> bool:
        for name, allowed in bounds.items():
            attribute = attributes[name]
            kinds = attribute.list.type or [attribute.type]
            if name in attributes and not allowed.issuperset(kinds):
                return False
        return True

    return any(fits(bounds) for bounds in registry.get(operation.type, ()))
