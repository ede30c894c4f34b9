"""Findings about compilation by XLA: rejected functions, recompilations, shapes and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpuctl.preflight.rehearsal.findings import Finding, Severity, Target
from tpuctl.preflight.rehearsal.observations import Compiled, Eager, Refused, Shape
from tpuctl.preflight.rehearsal.passes import Function, Pass
from tpuctl.preflight.rehearsal.topics.exit_findings import message_lines, shorten
from tpuctl.preflight.rehearsal.topics.varying_shapes import (
    Variation,
    padding_for,
    varying_dimensions,
)
from tpuctl.units import binary_size

GIB = 1 << 30
MAX_LISTED = 6  # shapes in a list
# Hints for unsupported operations, by TensorFlow's name.
OPERATION_HINTS = {
    "EagerPyFunc": "Remove tf.py_function from the step; it may stay in the data pipeline.",
    "PyFunc": "Remove tf.numpy_function from the step; it may stay in the data pipeline.",
    "PrintV2": "Remove tf.print from the step, and print what the step returns.",
    "StringFormat": "Remove tf.print from the step, and print what the step returns.",
}
SOFT_PLACEMENT = "soft placement runs on a TPU's host, but not here: its steps were not observed"
PIPELINE_HINT = "Do it in the data pipeline, which runs on the host."
GRADIENT_HINT = (
    "The gradient of a loop requires a maximum number of iterations:\n"
    "    tf.while_loop(…, maximum_iterations=N)"
)


def refusals(run: Pass) -> Iterator[Finding]:
    """One error per unsupported operation and line, or per rejected function without operations."""
    reported = set()
    for refusal in run.of(Refused):
        for rejected in refusal.operations:
            operation, where = rejected.operation, rejected.where or refusal.where
            if (operation, where) not in reported:
                reported.add((operation, where))
                message = f"{refusal.function} cannot be compiled: XLA does not support {operation}"
                hint = OPERATION_HINTS.get(operation, PIPELINE_HINT)
                if refusal.is_soft:
                    message = f"XLA does not support {operation}, which {SOFT_PLACEMENT}"
                severity: Severity = "unknown" if refusal.is_soft else "error"
                yield Finding("compiling", severity, message, hint=hint, where=where)
        if not refusal.operations and (refusal.message, refusal.where) not in reported:
            reported.add((refusal.message, refusal.where))
            lines = message_lines(refusal.message)
            first = shorten(lines[0]) if lines else "XLA rejected it"
            yield Finding(
                "compiling",
                "error",
                f"{refusal.function} cannot be compiled: {first}",
                "\n".join(map(shorten, lines[1:6])),
                GRADIENT_HINT if "fixed tensor list size" in refusal.message else "",
                refusal.where,
            )


def compilations(run: Pass) -> Iterator[Finding]:
    """The number of compilations per function, with hints to reduce it."""
    functions = run.functions
    if not functions:
        if not run.of(Refused):
            yield _no_compilation(run)
        return
    recompiled = [function for function in functions if len(function.compilations) > 1]
    for function in recompiled:
        yield _recompilation(function)
    compiled_once = [function for function in functions if len(function.compilations) == 1]
    if compiled_once and not run.of(Refused):
        names = ", ".join(f"{entry.name} in {entry.seconds:.1f} s" for entry in compiled_once[:3])
        more = f", and {len(compiled_once) - 3} more" if len(compiled_once) > 3 else ""
        yield Finding("compiling", "fine", f"each function once: {names}{more}")


def dynamic_shapes(run: Pass) -> Iterator[Finding]:
    for function in run.functions:
        if function.dynamic:
            yield Finding(
                "shapes",
                "cost",
                f"{function.name} has data-dependent shapes ({function.dynamic} dimensions): "
                "each takes the time and memory of its upper bound",
                hint="Keep the shape and mask instead. To list the lines:\n    tpuctl check SCRIPT",
                where=function.compilations[0].where,
            )


def memory(first: Pass, second: Pass | None, target: Target) -> Finding:
    """Compare the CPU program's memory with a core's, which is only a rough estimate."""
    peak = max((function.peak or 0 for function in first.functions), default=0)
    available = target.bytes_per_replica
    if not peak:
        return Finding("memory", "unknown", "usage of the step's program is unknown")
    compile_hint = (
        "To measure it with the TPU's own compiler:\n    tpuctl rehearse --compile SCRIPT"
    )
    if first.framework == "torch":  # not supported by --compile
        compile_hint = ""
    usage = f"about {binary_size(peak)} of {binary_size(available)} per core, measured on the CPU"
    if peak <= available * 0.9:
        return Finding("memory", "fine", usage)
    if not _has_core_batch(first, second, target):
        message = (
            f"{binary_size(peak)} for the whole batch; less per core on {target.replicas} cores"
        )
        return Finding("memory", "unknown", message, hint=compile_hint)
    return Finding("memory", "risk", f"{usage}: it may not fit", hint=compile_hint)


def _has_core_batch(first: Pass, second: Pass | None, target: Target) -> bool:
    """Whether the first pass ran one core's batch, not the global batch."""
    if target.replicas == 1 or first.framework != "tensorflow":
        return True
    if second is None or not first.examples or not second.examples:
        return False
    return second.examples == first.examples * second.replicas


def _no_compilation(run: Pass) -> Finding:
    eager = run.of(Eager)
    if eager:
        return Finding(
            "compiling",
            "error",
            "trains without tf.function (run_eagerly), which cannot run on a TPU",
            hint="Remove run_eagerly=True.",
            where=eager[0].where,
        )
    return Finding(
        "compiling",
        "risk",
        "no function was compiled: code outside tf.function does not run on a TPU",
        hint="Wrap the training step in a tf.function.",
    )


def _recompilation(function: Function) -> Finding:
    shapes_seen = [compilation.shapes for compilation in function.compilations]
    times = f"{function.name} was compiled {len(shapes_seen)} times in {function.seconds:.0f} s"
    where = function.compilations[0].where
    variations = varying_dimensions(shapes_seen)
    if not variations:
        if len(set(shapes_seen)) == len(shapes_seen):
            reason = "for arguments that differ in type, rank or number"
        else:
            reason = "for the same shapes"
        return Finding(
            "shapes",
            "cost",
            f"{times}, {reason}",
            _shape_lines(function.compilations),
            "Pass tensors instead of Python numbers, and always the same number of them.",
            where,
        )
    hints = []
    if any(variation.is_remainder for variation in variations):
        hints.append("Drop the last, smaller batch:\n    dataset.batch(N, drop_remainder=True)")
    hints += varying_shape_hints(shapes_seen, variations)
    if not hints:
        hints.append("Give every batch the same shape: drop_remainder=True, padded_shapes=…")
    message = f"{times}, because shapes vary: {'; '.join(map(describe, variations))}"
    return Finding("shapes", "cost", message, hint="\n".join(hints), where=where)


def varying_shape_hints(
    shapes: Sequence[tuple[Shape, ...]], variations: Sequence[Variation]
) -> list[str]:
    """The padding that leaves few distinct shapes, if there is any."""
    padding = padding_for(shapes, variations)
    if padding is None:
        return []
    return [
        f"Pad to multiples of {padding.multiple}: {padding.compilations} instead of "
        f"{padding.original_compilations}, {padding.waste:.0%} longer"
    ]


def describe(variation: Variation, names: Sequence[str] = ()) -> str:
    """The values of a dimension, with the argument's name if it is known."""
    values = list(dict.fromkeys(variation.values))
    listed = ", ".join(map(str, values[:MAX_LISTED])) + (", …" if len(values) > MAX_LISTED else "")
    subject = "the batch" if variation.is_batch else f"dimension {variation.dimension}"
    name = names[variation.argument] if names else f"argument {variation.argument + 1}"
    return f"{subject} of {name} is {listed}"


def _shape_lines(compilations: Sequence[Compiled]) -> str:
    lines = dict.fromkeys(", ".join(map(str, compiled.shapes)) or "()" for compiled in compilations)
    listed = list(lines)[:MAX_LISTED]
    return "\n".join([*listed, *(["…"] if len(lines) > MAX_LISTED else [])])
