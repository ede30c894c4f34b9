"""TPU639 optimizer-not-saved."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import LoopCall, loop_calls
from tpuctl.preflight.analysis.program.control_flow import names_bound_in, names_in
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    Function,
    argument_of,
    parameters_of,
    words_of,
)
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import optax

optimizer = optax.adam(1e-3)


@partial(jax.jit, donate_argnums=(0, 1))
def step(weights, opt_state):
    grads = jax.grad(lambda weights: jnp.mean(weights**2))(weights)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(weights, updates), opt_state


with open("/mnt/bucket/0", "rb") as file:
    saved = pickle.load(file)
weights = saved["weights"]
opt_state = STATE
for number in range(saved["step"], 1000):
    weights, opt_state = step(weights, opt_state)
    if number % 100 == 0:
        state = SAVED
        with open(f"/mnt/bucket/{number}", "wb") as file:
            pickle.dump(jax.device_get(state), file)
"""

RULE = Rule(
    code="TPU639",
    name="optimizer-not-saved",
    severity=Severity.risk,
    summary="Checkpoint has the parameters and the step, but not the optimizer's state",
    rationale=(
        "A job that goes on after a preemption continues with the saved parameters, and with an "
        "optimizer that begins again: its averages and its schedule are lost, and the loss jumps. "
        "Save and restore its state too."
    ),
    bad=SCRIPT.replace("STATE", "optimizer.init(weights)").replace(
        "SAVED", '{"weights": weights, "step": number}'
    ),
    good=SCRIPT.replace("STATE", 'saved["opt_state"]').replace(
        "SAVED", '{"weights": weights, "opt_state": opt_state, "step": number}'
    ),
)

OPTIMIZER = {"opt", "optim", "optimizer", "momentum", "moments", "velocity"}
STEPS = {"step", "steps", "epoch", "iteration"}
WRITERS = {
    *("pickle.dump", "pickle.dumps", "cloudpickle.dump", "joblib.dump", "numpy.savez"),
    *("flax.serialization.to_bytes", "flax.serialization.msgpack_serialize"),
    *("flax.training.checkpoints.save_checkpoint", "msgpack.packb"),
}
METHODS = {"save"}
READERS = {"load", "loads", "restore", "from_bytes", "msgpack_restore", "restore_checkpoint"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if READERS.isdisjoint(project.used_names) or STEPS.isdisjoint(project.texts):
        return
    for loop_call in loop_calls(project):
        if not loop_call.takes_gradients or loop_call.assignment is None:
            continue
        carried = _carried(loop_call)
        optimizer = {name for name in carried if words_of([name]) & OPTIMIZER}
        if optimizer and optimizer != carried:
            yield from _of_loop(project, loop_call, carried, optimizer)


def _carried(loop_call: LoopCall) -> set[str]:
    """The names that a step takes and replaces."""
    assert loop_call.assignment is not None
    passed = {value.id for _, value in loop_call.arguments if isinstance(value, ast.Name)}
    return passed & names_bound_in(loop_call.assignment)


def _of_loop(
    project: Project, loop_call: LoopCall, carried: set[str], optimizer: set[str]
) -> Iterator[Finding]:
    module = loop_call.module
    for call in (node for node in ast.walk(loop_call.loop) if isinstance(node, ast.Call)):
        around = module.enclosing_function(call)
        body: ast.AST = module.tree if around is None else around
        writes = [(module, call, _names_saved(module, body, call))]
        definition = function_of(project, module, call.func)
        if definition is not None and definition[1] is not around:
            writes = _writes_of(definition, module, call)
        for where, write, saved in writes:
            if saved and saved & (carried - optimizer) and not saved & optimizer:
                (name, *_) = sorted(optimizer)
                message = f"{quoted(where, write)} saves the step, but not `{name}`"
                hint = f"Save and restore `{name}` too."
                yield finding_at(RULE, where, write, message, hint)


def _writes_of(
    definition: tuple[Module, Function], module: Module, call: ast.Call
) -> list[tuple[Module, ast.Call, set[str]]]:
    """What a called function saves, by the names that the call passes for it."""
    where, function = definition
    passed: dict[str, set[str]] = {}
    for parameter in parameters_of(function):
        value = argument_of(function, call, parameter.arg)
        passed[parameter.arg] = set() if value is None else names_in(value)
    return [
        (where, node, {name for part in names for name in passed.get(part, ())})
        for node in where.own_nodes(function)
        if isinstance(node, ast.Call) and (names := _names_saved(where, function, node))
    ]


def _names_saved(module: Module, body: ast.AST, call: ast.Call) -> set[str]:
    """The names whose values a call saves with the number of the step; none for other calls."""
    name = module.names.of(call.func)
    is_method = name is None and getattr(call.func, "attr", "") in METHODS
    if name not in WRITERS and not is_method:
        return set()
    values: list[ast.AST] = [*call.args, *(keyword.value for keyword in call.keywords)]
    keys = {keyword.arg for keyword in call.keywords if keyword.arg}
    names: set[str] = set()
    for value in values:  # grows during iteration
        for part in ast.walk(value):
            if isinstance(part, ast.Dict):
                keys |= {str(getattr(key, "value", None)) for key in part.keys}
        for name in names_in(value) - names:
            names.add(name)
            values += [
                node.value
                for node in ast.walk(body)
                if isinstance(node, ast.Assign) and name in names_bound_in(node)
                and not isinstance(node.targets[0], ast.Tuple)
            ]  # fmt: skip
    return names if keys & STEPS and len(keys) > 1 else set()
