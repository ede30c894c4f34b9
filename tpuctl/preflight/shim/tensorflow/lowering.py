"""Lowers a step for the TPU compiler without a TPU. Requires the TensorFlow build for TPUs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]
from tensorflow.python import pywrap_tfe  # type: ignore[import-untyped, import-not-found, unused-ignore]
from tensorflow.python.distribute import distribute_lib  # type: ignore[import-untyped, import-not-found, unused-ignore]

from ..observation.host_connection import LoweringFailed
from ..observation.user_lines import UserLines, Where
from .pure_function import ImpureOperation, PureFunction, called_graphs, required_operations
from .unsupported_operations import unsupported_operations

DEVICE = "XLA_TPU_JIT"
PLATFORM = "TPU"
# Text that TensorFlow adds around the compiler's message.
TENSORFLOW_CONTEXT = re.compile(
    r"^Failed getting HLO text: '|\nOne approach is to outside compile.*|"
    r"\n\n?The op is created at:.*|\n\s*tf2xla conversion failed while.*|\n?Stack trace for op.*|"
    r"\n\s*\[\[\{\{node .*",
    re.DOTALL,
)
NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")


@dataclass(frozen=True)
class Lowered:
    """A program for one core. Its first arguments are the variables' values. After its first
    `results` results come the new values of `updated_variables`, by their indices."""

    program: bytes
    results: int
    updated_variables: tuple[int, ...]
    variables: int
    variable_bytes: int
    dynamic: int  # the number of bounded dynamic dimensions
    has_bfloat16: bool


def lower(
    function: Callable[..., Any],
    arguments: Any,
    keywords: dict[str, Any],
    lines: UserLines,
    *,
    is_soft: bool = False,
) -> Lowered:
    """Lower the function that a replica runs; tensors are TensorSpecs. Raises LoweringFailed.

    With `is_soft`, soft placement runs what a TPU does not support on its host.
    """
    concrete = trace(function, arguments, keywords, lines)
    values = PureFunction(concrete)
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in values.inputs]
    try:
        outer = tf.function(values, jit_compile=True, autograph=False)
        ir = outer.experimental_get_compiler_ir(*values.variables, *specs)
        program = ir(stage="hlo_serialized", platform_name=PLATFORM)
        text = ir(stage="hlo", platform_name=PLATFORM)
    except Exception as error:
        raise _refusal(error, concrete.graph, lines, is_soft=is_soft) from error
    return Lowered(
        program=program,
        results=values.results,
        updated_variables=tuple(values.updated_variables),
        variables=len(values.variables),
        variable_bytes=sum(
            variable.dtype.size * (variable.shape.num_elements() or 0)
            for variable in values.variables
        ),
        dynamic=text.count("<="),
        has_bfloat16=" bf16[" in text,
    )


def trace(
    function: Callable[..., Any], arguments: Any, keywords: dict[str, Any], lines: UserLines
) -> Any:
    """Trace the function that a replica runs; tensors are TensorSpecs. Raises LoweringFailed."""
    try:
        with contextlib.ExitStack() as stack:
            _enter_replica(stack)
            # Tapes are paused if the step is captured while tracing a graph.
            pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
            traced = tf.function(function, jit_compile=True)
            return traced.get_concrete_function(*arguments, **keywords)
    except Exception as error:
        raise LoweringFailed(_last_paragraph(error), "script", lines.of_exception(error)) from error


def _enter_replica(stack: contextlib.ExitStack) -> None:
    """Enter a replica context if the script is in a strategy's scope."""
    if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
        strategy = tf.distribute.get_strategy()
        replica = distribute_lib.ReplicaContext(strategy, replica_id_in_sync_group=0)
        stack.enter_context(replica)


def _last_paragraph(error: Exception) -> str:
    """The last paragraph of an error's message, without AutoGraph's traceback through libraries."""
    paragraphs = [paragraph for paragraph in str(error).strip().split("\n\n") if paragraph.strip()]
    lines = "\n".join(line.strip() for line in paragraphs[-1].splitlines()) if paragraphs else ""
    kind = type(error).__name__
    return lines if lines.startswith(kind) else f"{kind}: {lines}"


def _refusal(error: Exception, graph: Any, lines: UserLines, *, is_soft: bool) -> LoweringFailed:
    unsupported = unsupported_operations(graph, DEVICE, lines)
    if unsupported:
        names = sorted({str(item["operation"]) for item in unsupported})
        message = f"A TPU has no operation {', '.join(names)}"
        if is_soft:
            message += ": soft placement runs it on the host, outside of the program"
        origin = "tpuctl" if is_soft else "compiler"
        return LoweringFailed(message, origin, unsupported[0]["where"], unsupported)
    if isinstance(error, ImpureOperation):
        operation = error.operation
        where = lines.of_operation(operation)
        message = f"{operation.type} uses a variable in a way that tpuctl cannot lower"
        item = {"operation": operation.type, "where": where}
        return LoweringFailed(message, "tpuctl", where, [item])
    text = TENSORFLOW_CONTEXT.sub("", str(error)).strip().rstrip("'")
    where = _line_in_message(str(error), graph, lines) or lines.of_exception(error)
    return LoweringFailed(NODE.sub("", text).strip(), "compiler", where)


def _line_in_message(message: str, graph: Any, lines: UserLines) -> Where | None:
    """The user's line of the operation named in a message."""
    for name in NODE.findall(message):
        where = _find_line(graph, name.rpartition(" ")[2], lines)
        if where is not None:
            return where
    return None


def _find_line(graph: Any, name: str, lines: UserLines) -> Where | None:
    for operation in required_operations(graph):
        if operation.name == name:
            return lines.of_operation(operation)
        for body in called_graphs(operation):
            where = _find_line(body, name, lines)
            if where is not None:
                return where
    return None
