"""What XLA said of the script's functions: refused, compiled, compiled again, how much memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpuctl.preflight.rehearsal.exit_findings import shortened
from tpuctl.preflight.rehearsal.findings import Finding, Target
from tpuctl.preflight.rehearsal.observations import Compiled, Eager, Refused
from tpuctl.preflight.rehearsal.passes import Function, Pass
from tpuctl.preflight.rehearsal.varying_shapes import Varying, padding_for, varying

__all__ = ["compilations", "dynamic_shapes", "memory", "refusals"]

GIB = 1 << 30
SHOWN = 6  # shapes in a list
# What to write instead, by the operation as TensorFlow names it.
INSTEAD = {
    "EagerPyFunc": "Remove tf.py_function from the step; it may stay in the data pipeline.",
    "PyFunc": "Remove tf.numpy_function from the step; it may stay in the data pipeline.",
    "PrintV2": "Remove tf.print from the step, and print what the step returns.",
    "StringFormat": "Remove tf.print from the step, and print what the step returns.",
}
PIPELINE = "Do it in the data pipeline, which runs on the host."
GRADIENT = (
    "The gradient of a loop requires a maximum number of iterations:\n"
    "    tf.while_loop(…, maximum_iterations=N)"
)


def refusals(run: Pass) -> Iterator[Finding]:
    """An error for each operation, at the user's line, or for what was refused as a whole."""
    told = set()
    for each in run.of(Refused):
        operations = [
            (operation.operation, operation.where or each.where) for operation in each.operations
        ]
        for operation, where in operations:
            if (operation, where) not in told:
                told.add((operation, where))
                message = f"{each.function} cannot be compiled: XLA does not support {operation}"
                hint = INSTEAD.get(operation, PIPELINE)
                yield Finding("compiling", "error", message, hint=hint, where=where)
        if not operations and (each.message, each.where) not in told:
            told.add((each.message, each.where))
            lines = [line for line in each.message.splitlines() if line.strip()]
            first = shortened(lines[0].strip()) if lines else "XLA rejected it"
            yield Finding(
                "compiling",
                "error",
                f"{each.function} cannot be compiled: {first}",
                "\n".join(map(shortened, lines[1:6])),
                GRADIENT if "fixed tensor list size" in each.message else "",
                each.where,
            )


def compilations(run: Pass) -> Iterator[Finding]:
    """How often each function was compiled, with what would make it fewer times."""
    functions = run.functions
    if not functions:
        if not run.of(Refused):
            yield _nothing_compiled(run)
        return
    again = [each for each in functions if len(each.compilations) > 1]
    for function in again:
        yield _compiled_again(function)
    once = [each for each in functions if len(each.compilations) == 1]
    if once and not run.of(Refused):
        names = ", ".join(f"{each.name} in {each.seconds:.1f} s" for each in once[:3])
        more = f", and {len(once) - 3} more" if len(once) > 3 else ""
        yield Finding("compiling", "fine", f"by XLA, once each: {names}{more}")


def dynamic_shapes(run: Pass) -> Iterator[Finding]:
    for function in run.functions:
        if function.dynamic:
            yield Finding(
                "shapes",
                "cost",
                f"{function.name} has data-dependent shapes ({function.dynamic} dimensions): "
                "each takes the time and memory of its upper bound",
                hint="Keep the shape and mask instead. To list the lines:\n    tpuctl check",
                where=function.compilations[0].where,
            )


def memory(first: Pass, second: Pass | None, target: Target) -> Finding:
    """The CPU program's memory against the chip's: a rough word, in the right direction alone."""
    peak = max((each.peak or 0 for each in first.functions), default=0)
    room = target.bytes_per_replica
    if not peak:
        return Finding("memory", "unknown", "of the step's program is unknown")
    exact = "To measure it with the TPU's own compiler:\n    tpuctl rehearse --compile"
    usage = f"about {_size(peak)} of {_size(room)} per core, measured on the CPU"
    if peak <= room * 0.9:
        return Finding("memory", "fine", usage)
    if not _is_one_share(first, second, target):
        message = f"{_size(peak)} for the whole batch; less per core on {target.replicas} cores"
        return Finding("memory", "unknown", message, hint=exact)
    return Finding("memory", "risk", f"{usage}: it may not fit", hint=exact)


def _is_one_share(first: Pass, second: Pass | None, target: Target) -> bool:
    """Whether the first pass had the batch of one core, and not that of all."""
    if target.replicas == 1:
        return True
    whole = second.examples if second is not None else None
    return bool(first.examples and whole and second and whole == first.examples * second.replicas)


def _nothing_compiled(run: Pass) -> Finding:
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


def _compiled_again(function: Function) -> Finding:
    shapes_seen = [each.shapes for each in function.compilations]
    times = f"{function.name} was compiled {len(shapes_seen)} times in {function.seconds:.0f} s"
    where = function.compilations[0].where
    varied = varying(shapes_seen)
    if not varied:
        if len(set(shapes_seen)) == len(shapes_seen):
            reason = "for arguments that differ in type, rank or number"
        else:
            reason = "for the same shapes"
        return Finding(
            "shapes",
            "cost",
            f"{times}, {reason}",
            _listed(function.compilations),
            "Pass tensors instead of Python numbers, and always the same number of them.",
            where,
        )
    hints = []
    if any(each.is_remainder for each in varied):
        hints.append("Drop the last, smaller batch:\n    dataset.batch(N, drop_remainder=True)")
    padding = padding_for(shapes_seen, varied)
    if padding is not None:
        hints.append(
            f"Pad to multiples of {padding.multiple}: {padding.left} instead of {padding.before}, "
            f"{padding.waste:.0%} longer"
        )
    elif not hints:
        hints.append("Give every batch the same shape: drop_remainder=True, padded_shapes=…")
    message = f"{times}, because shapes vary: {'; '.join(map(_describe, varied))}"
    return Finding("shapes", "cost", message, hint="\n".join(hints), where=where)


def _describe(dimension: Varying) -> str:
    values = list(dict.fromkeys(dimension.values))
    listed = ", ".join(map(str, values[:SHOWN])) + (", …" if len(values) > SHOWN else "")
    subject = "the batch" if dimension.is_batch else f"dimension {dimension.dimension}"
    return f"{subject} of argument {dimension.argument + 1} is {listed}"


def _listed(compilations: Sequence[Compiled]) -> str:
    lines = dict.fromkeys(", ".join(map(str, each.shapes)) or "()" for each in compilations)
    listed = list(lines)[:SHOWN]
    return "\n".join([*listed, *(["…"] if len(lines) > SHOWN else [])])


def _size(size: int) -> str:
    if size >= GIB / 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 17 else f"{size / 1024:.1f} KiB"
