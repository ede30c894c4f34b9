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
    "EagerPyFunc": "Take tf.py_function out of the step; in the data pipeline it may stay.",
    "PyFunc": "Take tf.numpy_function out of the step; in the data pipeline it may stay.",
    "PrintV2": "Take tf.print out of the step, and print what the step returns.",
    "StringFormat": "Take tf.print out of the step, and print what the step returns.",
}
PIPELINE = "Do it in the data pipeline, which runs on the host."
GRADIENT = (
    "The gradient of a loop needs to know how often it runs at most:\n"
    "    tf.while_loop(…, maximum_iterations=N)"
)


def refusals(one: Pass) -> Iterator[Finding]:
    """An error for each operation, at the user's line, or for what was refused as a whole."""
    told = set()
    for each in one.of(Refused):
        named = [
            (operation.operation, operation.where or each.where) for operation in each.operations
        ]
        for operation, where in named:
            if (operation, where) not in told:
                told.add((operation, where))
                message = f"{each.function} cannot be compiled: XLA has no {operation}"
                hint = INSTEAD.get(operation, PIPELINE)
                yield Finding("compiling", "error", message, hint=hint, where=where)
        if not named and (each.message, each.where) not in told:
            told.add((each.message, each.where))
            lines = [line for line in each.message.splitlines() if line.strip()]
            first = shortened(lines[0].strip()) if lines else "XLA refused it"
            yield Finding(
                "compiling",
                "error",
                f"{each.function} cannot be compiled: {first}",
                "\n".join(map(shortened, lines[1:6])),
                GRADIENT if "fixed tensor list size" in each.message else "",
                each.where,
            )


def compilations(one: Pass) -> Iterator[Finding]:
    """How often each function was compiled, with what would make it fewer times."""
    functions = one.functions
    if not functions:
        if not one.of(Refused):
            yield _nothing_compiled(one)
        return
    again = [each for each in functions if len(each.compilations) > 1]
    for function in again:
        yield _compiled_again(function)
    once = [each for each in functions if len(each.compilations) == 1]
    if once and not one.of(Refused):
        names = ", ".join(f"{each.name} in {each.seconds:.1f} s" for each in once[:3])
        more = f", and {len(once) - 3} more" if len(once) > 3 else ""
        yield Finding("compiling", "fine", f"by XLA, once each: {names}{more}")


def dynamic_shapes(one: Pass) -> Iterator[Finding]:
    for function in one.functions:
        if function.dynamic:
            yield Finding(
                "shapes",
                "cost",
                f"{function.name} has shapes that depend on data ({function.dynamic} dimensions): "
                "each takes the time and memory of the largest it may be",
                hint="Keep the shape and mask instead. The lines are named by\n    tpuctl check",
                where=function.compilations[0].where,
            )


def memory(first: Pass, second: Pass | None, target: Target) -> Finding:
    """The CPU program's memory against the chip's: a rough word, in the right direction alone."""
    peak = max((each.peak or 0 for each in first.functions), default=0)
    room = target.bytes_per_replica
    if not peak:
        return Finding("memory", "unknown", "of the step's program could not be seen")
    exact = "Exactly, by the TPU's own compiler:\n    tpuctl rehearse --compile"
    taken = f"about {_size(peak)} of {_size(room)} a core, as the CPU's program has it"
    if peak <= room * 0.9:
        return Finding("memory", "fine", taken)
    if not _is_one_share(first, second, target):
        message = f"{_size(peak)} for the whole batch; shared by {target.replicas} cores it is less"
        return Finding("memory", "unknown", message, hint=exact)
    return Finding("memory", "risk", f"{taken}: it may not fit", hint=exact)


def _is_one_share(first: Pass, second: Pass | None, target: Target) -> bool:
    """Whether the first pass had the batch of one core, and not that of all."""
    if target.replicas == 1:
        return True
    whole = second.examples if second is not None else None
    return bool(first.examples and whole and second and whole == first.examples * second.replicas)


def _nothing_compiled(one: Pass) -> Finding:
    eager = one.of(Eager)
    if eager:
        return Finding(
            "compiling",
            "error",
            "trains without tf.function (run_eagerly), of which a TPU can run nothing",
            hint="Take run_eagerly=True out.",
            where=eager[0].where,
        )
    return Finding(
        "compiling",
        "risk",
        "no function was compiled: what runs outside of tf.function runs on no TPU",
        hint="Put the training step into a tf.function.",
    )


def _compiled_again(function: Function) -> Finding:
    seen = [each.shapes for each in function.compilations]
    times = f"{function.name} was compiled {len(seen)} times in {function.seconds:.0f} s"
    where = function.compilations[0].where
    varied = varying(seen)
    if not varied:
        if len(set(seen)) == len(seen):
            why = "for arguments of other types, ranks or number"
        else:
            why = "for the same shapes"
        return Finding(
            "shapes",
            "cost",
            f"{times}, {why}",
            _listed(function.compilations),
            "Pass tensors, not Python numbers, and always as many.",
            where,
        )
    hints = []
    if any(each.is_remainder for each in varied):
        hints.append("Drop the last, smaller batch:\n    dataset.batch(N, drop_remainder=True)")
    padding = padding_for(seen, varied)
    if padding is not None:
        hints.append(
            f"Pad to multiples of {padding.multiple}: {padding.left} instead of {padding.before}, "
            f"{padding.waste:.0%} longer"
        )
    elif not hints:
        hints.append("Give every batch the same shape: drop_remainder=True, padded_shapes=…")
    message = f"{times}, since shapes vary: {'; '.join(map(_spoken, varied))}"
    return Finding("shapes", "cost", message, hint="\n".join(hints), where=where)


def _spoken(one: Varying) -> str:
    values = list(dict.fromkeys(one.values))
    shown = ", ".join(map(str, values[:SHOWN])) + (", …" if len(values) > SHOWN else "")
    what = "the batch" if one.is_batch else f"dimension {one.dimension}"
    return f"{what} of argument {one.argument + 1} is {shown}"


def _listed(compilations: Sequence[Compiled]) -> str:
    lines = dict.fromkeys(", ".join(map(str, each.shapes)) or "()" for each in compilations)
    shown = list(lines)[:SHOWN]
    return "\n".join([*shown, *(["…"] if len(lines) > SHOWN else [])])


def _size(size: int) -> str:
    if size >= GIB / 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 17 else f"{size / 1024:.1f} KiB"
