"""TPU628 gradients-not-averaged."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.compiled_functions import GRADIENTS, called_compiler, decorated
from tpuctl.preflight.analysis.jax.meshes import (
    PARTITION_SPECS,
    PMAPS,
    mapped_functions,
    named_axes,
)
from tpuctl.preflight.analysis.jax.processes import resolved
from tpuctl.preflight.analysis.program.control_flow import names_bound_in, names_in
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import Function, parameters_of, returns_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

STEP = """\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.pmap, axis_name="batch")
def step(weights, x):
    loss, grads = jax.value_and_grad(lambda weights: jnp.mean((x @ weights) ** 2))(weights)
    loss = jax.lax.pmean(loss, "batch")
"""

RULE = Rule(
    code="TPU628",
    name="gradients-not-averaged",
    severity=Severity.risk,
    summary="Parallel step averages its loss over the devices, but not its gradients",
    rationale=(
        "In `jax.pmap`, each device has the gradients of its part of the batch. If they are not "
        "averaged before the update, every device trains a model of its own, on its part alone; "
        "the average of the losses does not show it. If the loss is a mean, `psum` makes the "
        "gradients larger by the number of devices, and the learning rate with them. The same "
        "holds for `jax.shard_map` with `check_vma=False`; with the check, it sums the gradients "
        "of replicated parameters itself."
    ),
    bad=STEP + "    return weights - 0.1 * grads, loss\n",
    good=STEP
    + """\
    grads = jax.lax.pmean(grads, "batch")
    return weights - 0.1 * grads, loss
""",
)

# What may be called with gradients, and certainly exchanges nothing.
LOCAL = ("jax.tree", "optax.", "jax.numpy.")
METHODS = {"update", "apply_gradients"}
REDUCTIONS = ("jax.lax.pmean", "jax.lax.psum")
COLLECTIVES = ("jax.lax.p", "jax.lax.all_")
CHECKS = {"check_vma", "check_rep"}
MEANS = {"mean", "average"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    reported: set[ast.AST] = set()
    for module in project:
        for node in module.of_types(ast.FunctionDef, ast.Call):
            compiled = (
                decorated(module, node)
                if isinstance(node, ast.FunctionDef)
                else called_compiler(project, module, node)
            )
            if compiled is None or compiled.name not in PMAPS or compiled.reference is None:
                continue
            where, function = compiled.reference.module, compiled.reference.function
            if compiled.keyword("axis_name") is None or function in reported:
                continue
            reported.add(function)
            yield from _of_step(project, where, function)
        for call, reference in mapped_functions(project, module):
            if reference is None or reference.function in reported:
                continue
            replicated = _replicated(project, module, call, reference.function)
            if replicated and _is_unchecked(project, module, call):
                reported.add(reference.function)
                yield from _of_step(project, reference.module, reference.function, replicated)


def _replicated(project: Project, module: Module, call: ast.Call, function: Function) -> set[str]:
    """The parameters that `shard_map` gives to each device as a whole, if it splits others."""
    specs = next((part.value for part in call.keywords if part.arg == "in_specs"), None)
    if not isinstance(specs, ast.Tuple) or not any(named_axes(project, module, specs)):
        return set()
    return {
        parameter.arg
        for parameter, spec in zip(parameters_of(function), specs.elts, strict=False)
        for where, value in [resolved(project, module, spec)]
        if where.names.called(value) in PARTITION_SPECS and not getattr(value, "args", ())
    }


def _is_unchecked(project: Project, module: Module, call: ast.Call) -> bool:
    """Whether JAX does not track which values differ, and so does not sum gradients itself."""
    for keyword in call.keywords:
        if keyword.arg in CHECKS:
            return isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        options = HostCode.of(project).assigned_values(module, keyword.value)
        if keyword.arg is None and options:
            return all(isinstance(each, ast.Dict) and _turns_off(each) for each in options)
    return False


def _turns_off(options: ast.Dict) -> bool:
    return any(
        getattr(key, "value", "") in CHECKS
        and isinstance(value, ast.Constant) and value.value is False
        for key, value in zip(options.keys, options.values, strict=True)
    )  # fmt: skip


def _of_step(
    project: Project, module: Module, step: Function, replicated: set[str] | None = None
) -> Iterator[Finding]:
    nodes = module.own_nodes(step)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    reduced = [call for call in calls if module.names.of(call.func) in REDUCTIONS]
    for assignment in nodes:
        if not isinstance(assignment, ast.Assign) or not isinstance(assignment.value, ast.Call):
            continue
        gradient_call = assignment.value
        names = {name for name in names_bound_in(assignment) if "grad" in name.lower()}
        is_gradient = (module.names.called(gradient_call.func) or "").endswith(GRADIENTS)
        if not is_gradient or len(names) != 1 or not isinstance(gradient_call.func, ast.Call):
            continue
        if replicated is not None and not _differentiates(gradient_call, replicated):
            continue
        readers = [node for node in nodes if _reads(node, names)]
        sums = [call for call in reduced if call in readers]
        loss = (
            function_of(project, module, gradient_call.func.args[0])
            if gradient_call.func.args
            else None
        )
        if loss is None or _exchanges(project, *loss):
            continue
        if sums:
            yield from _summed(module, nodes, sums, loss)
        elif reduced and readers and all(_is_local(module, call) for call in readers):
            (name,) = names
            message = f"`{name}` has the gradients of one device, and nothing averages them"
            hint = f'Add {name} = jax.lax.pmean({name}, "…") before the update.'
            yield finding_at(RULE, module, readers[0], message, hint)


def _differentiates(call: ast.Call, parameters: set[str]) -> bool:
    return bool(call.args) and getattr(call.args[0], "id", "") in parameters


def _reads(node: ast.AST, names: set[str]) -> bool:
    """Whether a call or an arithmetic operation reads one of the names."""
    if isinstance(node, ast.BinOp):
        return bool(names & names_in(node))
    if not isinstance(node, ast.Call):
        return False
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    return any(names & names_in(value) for value in arguments)


def _is_local(module: Module, call: ast.AST) -> bool:
    """Whether a call certainly exchanges nothing between devices."""
    parts = [module.names.of(part) or "" for part in ast.walk(call)]
    if any(part.startswith(COLLECTIVES) for part in parts) or "axis_name" in module.segment(call):
        return False
    if not isinstance(call, ast.Call):
        return True
    name = module.names.of(call.func)
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in METHODS
    return is_method if name is None else name.startswith(LOCAL)


def _exchanges(project: Project, module: Module, function: Function) -> bool:
    """Whether a loss may exchange values between devices itself."""
    return any(
        (module.names.called(node) or "").startswith(COLLECTIVES)
        for node in module.own_nodes(function)
    )


def _summed(
    module: Module, nodes: list[ast.AST], sums: list[ast.Call], loss: tuple[Module, Function]
) -> Iterator[Finding]:
    """Gradients of a mean that are summed, and never divided."""
    _, function = loss
    values = [part.value for part in returns_of(function)]
    if isinstance(function, ast.Lambda):
        values = [function.body]
    is_mean = bool(values) and all(_is_mean(value) for value in values)
    is_divided = any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) for node in nodes
    ) or any(isinstance(node, ast.Lambda) and "/" in module.segment(node) for node in nodes)
    for call in sums:
        if is_mean and not is_divided and module.names.of(call.func) == "jax.lax.psum":
            message = f"{quoted(module, call)} sums the gradients of a mean over the devices"
            yield finding_at(RULE, module, call, message, "Use jax.lax.pmean.")


def _is_mean(node: ast.expr | None) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_mean(node.operand)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in MEANS
