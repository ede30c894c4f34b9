"""Findings about training with JAX: compilations, and callbacks to the host."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tpuctl.preflight.rehearsal.findings import Finding
from tpuctl.preflight.rehearsal.observations import (
    Callback,
    Compiled,
    Configured,
    Diverged,
    Eager,
    SameKey,
    Where,
)
from tpuctl.preflight.rehearsal.passes import Function, Pass
from tpuctl.preflight.rehearsal.topics.compile_findings import describe, varying_shape_hints
from tpuctl.preflight.rehearsal.topics.varying_shapes import varying_dimensions
from tpuctl.units import binary_size

MAX_LINES = 3  # of the script, each with a finding
FIRST_STEPS = 2  # in which operations are compiled for the first time
MIN_OPERATIONS = 3  # compiled at one line after that
MIN_CONSTANT_BYTES = 16 << 20
PLATFORM = "the script runs on the CPU: the TPU is idle"
SETTINGS = {
    "jax_debug_nans": "the host checks the results of every step, and the TPU waits",
    "jax_debug_infs": "the host checks the results of every step, and the TPU waits",
    "jax_disable_jit": "nothing is compiled: operations run one at a time",
    "jax_enable_x64": "numbers have 64 bits by default, which TPUs emulate in software",
    "jax_platforms": PLATFORM,
    "jax_platform_name": PLATFORM,
}
SHARD_HINT = (
    "Shard the batch over all devices:\n"
    '    mesh = jax.make_mesh((jax.device_count(),), ("data",))\n'
    '    batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))'
)
STEP_HINT = "Put the whole step, gradients and update, into one function under jax.jit."


def compilations(run: Pass) -> Iterator[Finding]:
    """The number of compilations of the training step, and of operations between steps."""
    training = [function for function in run.functions if function.compilations[0].trains]
    for function in training:
        if len(function.compilations) > 1:
            yield _recompilation(function)
    compiled_once = [function for function in training if len(function.compilations) == 1]
    if compiled_once:
        names = ", ".join(f"{entry.name} in {entry.seconds:.1f} s" for entry in compiled_once)
        yield Finding("compiling", "fine", f"each function once: {names}")
    eager = run.of(Eager)
    if eager:
        message = "computes gradients outside of jax.jit, one operation at a time"
        yield Finding("compiling", "cost", message, hint=STEP_HINT, where=eager[0].where)
    elif not training:
        message = "no compiled function computes gradients: calls of one were taken as steps"
        yield Finding("compiling", "unknown", message)
    yield from islice(_operations(run), MAX_LINES)


def callbacks(run: Pass) -> Iterator[Finding]:
    """Functions that the compiled program calls on the host."""
    for callback in run.of(Callback)[:MAX_LINES]:
        yield Finding(
            "transfers",
            "cost",
            f"{callback.function} in a compiled function: the TPU sends values to the host",
            hint="Return the values from the step instead, or use it only to debug.",
            where=callback.where,
        )


def constants(run: Pass) -> Iterator[Finding]:
    """Large arrays that are part of a program instead of its arguments."""
    for function in run.functions:
        first = function.compilations[0]
        if first.constants >= MIN_CONSTANT_BYTES:
            yield Finding(
                "memory",
                "cost",
                f"{function.name} takes {binary_size(first.constants)} of arrays from outside, "
                "which become constants of its program: it compiles slowly and holds another copy",
                hint="Pass them to the function as arguments.",
                where=first.where,
            )


def random_keys(run: Pass) -> Iterator[Finding]:
    """The same random numbers in every step."""
    if run.of(SameKey):
        step = run.training_step
        yield Finding(
            "randomness",
            "risk",
            "every step is passed the same random key: it draws the same numbers, as for dropout",
            hint="Derive a key for each step:\n    key = jax.random.fold_in(first_key, step)",
            where=None if step is None else step.compilations[0].where,
        )


def settings(run: Pass) -> Iterator[Finding]:
    """Settings of JAX that slow every step down."""
    for configured in run.of(Configured):
        message = f"{configured.setting}: {SETTINGS[configured.setting]}"
        hint = "Set it only to debug."
        yield Finding("settings", "cost", message, hint=hint, where=configured.where)


def copies(run: Pass) -> Iterator[Finding]:
    """State that should be equal on all devices, but is not."""
    for diverged in run.of(Diverged):
        yield Finding(
            "replicas",
            "risk",
            f"{diverged.function} returns other weights on each device, although they should be "
            "copies: gradients are not combined",
            hint='Average the gradients: grads = jax.lax.pmean(grads, "AXIS")',
            where=diverged.where,
        )


def _recompilation(function: Function) -> Finding:
    shapes = [compilation.shapes for compilation in function.compilations]
    times = f"{function.name} was compiled {len(shapes)} times in {function.seconds:.0f} s"
    where = function.compilations[0].where
    changes = [change for entry in function.compilations[1:] for change in entry.changes]
    detail = "\n".join(dict.fromkeys(changes))
    variations = varying_dimensions(shapes)
    if variations:
        names = function.compilations[0].names
        varying = "; ".join(describe(variation, names) for variation in variations)
        hints = varying_shape_hints(shapes, variations) or [
            "Give every batch the same shape: pad it, or drop the last one."
        ]
        message = f"{times}, because shapes vary: {varying}"
        return Finding("shapes", "cost", message, hint="\n".join(hints), where=where)
    if changes and all(": on " in change for change in changes):
        message = f"{times}, because its arguments are placed differently in the next call"
        hint = (
            "Place the first state as the step returns it:\n"
            "    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))"
        )
        return Finding("compiling", "cost", message, detail, hint, where)
    hint = "Pass arrays of the same type instead of Python values that change."
    return Finding("shapes", "cost", f"{times}, for other arguments", detail, hint, where)


def _operations(run: Pass) -> Iterator[Finding]:
    """Operations outside of compiled functions that are compiled again and again."""
    by_line: dict[Where | None, list[Compiled]] = {}
    for compiled in run.of(Compiled):
        if compiled.after_step is not None and compiled.after_step > FIRST_STEPS:
            by_line.setdefault(compiled.where, []).append(compiled)
    for where, group in by_line.items():
        if where is not None and len(group) >= MIN_OPERATIONS:
            names = ", ".join(sorted({compiled.function for compiled in group})[:3])
            message = (
                f"operations outside of jax.jit ({names}) are compiled between steps, "
                f"{len(group)} times: their shapes vary"
            )
            hint = "Do it in NumPy, or with fixed shapes in the compiled step."
            yield Finding("compiling", "cost", message, hint=hint, where=where)
