"""TPU204 python-number-argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import names_bound_in
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, Function, parameters_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.training_loops import program_of
from tpuctl.preflight.analysis.tracing.traced import root_of
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU204",
    name="python-number-argument",
    severity=Severity.cost,
    summary="tf.function called with a Python number that changes",
    rationale=(
        "A Python number becomes a constant of the compiled program, so every new value is traced "
        "and compiled again. A tensor is passed as an argument."
    ),
    bad="""\
import tensorflow as tf


@tf.function
def step(x, rate):
    return x * rate


def train(x):
    for epoch in range(100):
        x = step(x, 0.1 / (epoch + 1))
""",
    good="""\
import tensorflow as tf


@tf.function
def step(x, rate):
    return x * rate


def train(x):
    for epoch in range(100):
        x = step(x, tf.constant(0.1 / (epoch + 1)))
""",
)

LOOPS = (ast.For, ast.While, ast.AsyncFor)


def find(project: Project, target: Target) -> Iterator[Finding]:
    host = HostCode.of(project)
    changed: dict[ast.AST, set[str]] = {}
    for module in project:
        for node in module.calls:
            loop = _loop_around(module, node)
            if loop is None or not (node.args or node.keywords):
                continue
            if loop not in changed:
                changed[loop] = names_bound_in(loop)
            changing = changed[loop]
            arguments = [*node.args, *(key.value for key in node.keywords if key.arg)]
            differing = [argument for argument in arguments if _mentions(argument, changing)]
            program = program_of(project, module, node.func) if differing else None
            if program is None or _has_signature(host, module, node.func, program[1]):
                continue
            for number in differing:
                is_number = host.evaluate(module, number).is_number
                if not is_number or _is_typed(program[1], node, number):
                    continue
                message = (
                    f"the number {quoted(module, number)} changes in each iteration, and "
                    f"{quoted(module, node.func)} is compiled again for each value"
                )
                hint = f"Pass a tensor: tf.constant({module.segment(number)})"
                yield finding_at(RULE, module, node, message, hint)


def _loop_around(module: Module, node: ast.AST) -> ast.For | ast.While | ast.AsyncFor | None:
    """The outermost Python loop around a call."""
    outermost: ast.For | ast.While | ast.AsyncFor | None = None
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, FUNCTIONS):
            is_program = root_of(module, ancestor) is not None
            return None if is_program else outermost
        if isinstance(ancestor, LOOPS):
            outermost = ancestor
    return outermost


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


def _has_signature(host: HostCode, module: Module, called: ast.expr, function: Function) -> bool:
    """Whether all numbers are converted to tensors of a signature."""
    wrappers = [*host.assigned_values(module, called), *getattr(function, "decorator_list", [])]
    return any(
        keyword.arg == "input_signature"
        for wrapper in wrappers
        for keyword in getattr(wrapper, "keywords", [])
    )


def _is_typed(function: Function, call: ast.Call, arg: ast.expr) -> bool:
    """Whether the parameter is annotated as a tensor, so that numbers are converted."""
    name = next((key.arg for key in call.keywords if key.value is arg), None)
    parameters = [
        parameter for parameter in parameters_of(function) if parameter.arg not in ("self", "cls")
    ]
    if name is None and arg in call.args:
        index = call.args.index(arg)
        parameters = parameters[index : index + 1]
    else:
        parameters = [parameter for parameter in parameters if parameter.arg == name]
    return any(
        parameter.annotation is not None and "Tensor" in ast.unparse(parameter.annotation)
        for parameter in parameters
    )
