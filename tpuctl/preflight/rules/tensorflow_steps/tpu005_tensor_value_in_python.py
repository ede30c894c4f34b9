"""TPU005 tensor-value-in-python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from string import Formatter

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.analysis.values.abstract_values import Kind, Value
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU005",
    name="tensor-value-in-python",
    severity=Severity.error,
    summary="Python needs the value of a tensor during tracing",
    rationale=(
        "A tensor has no value during tracing: `.numpy()`, NumPy functions, `bool()`, `max()` and "
        'the like fail, as do number formats (`f"{loss:.3f}"`), and `int()` and `float()` where '
        "AutoGraph does not convert them."
    ),
    bad="""\
import tensorflow as tf


@tf.function
def step(x):
    loss = tf.reduce_mean(x)
    return loss.numpy()
""",
    good="""\
import tensorflow as tf


@tf.function
def step(x):
    return tf.reduce_mean(x)


def train(x):
    print(step(x).numpy())
""",
)

NEVER_CONVERTED = {"bool", "max", "min", "sum", "any", "all", "list", "tuple", "set", "complex"}
NOT_WITHOUT_AUTOGRAPH = {"int", "float", "len", "range", "sorted", "enumerate", "round"}
NUMBER_FORMAT = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?([a-zA-Z])")
SHAPE_FUNCTIONS = {"shape", "ndim", "size", "dtype", "isscalar", "iterable"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node in inference.sites:
        if isinstance(node, ast.Call):
            yield from _value_needed(inference, traced, node)
        if isinstance(node, (ast.FormattedValue, ast.BinOp, ast.Call)):
            yield from _formatted(inference, traced, node)


def _value_needed(inference: Inference, traced: Traced, node: ast.Call) -> Iterator[Finding]:
    func = node.func
    name = traced.module.names.of(func)
    if isinstance(func, ast.Attribute) and name is None:
        owner = inference.of(func.value)
        needs_value = func.attr == "numpy" and not node.args and owner.kind >= Kind.UNKNOWN
        needs_value = needs_value or (func.attr in ("item", "tolist", "eval") and owner.is_tensor)
        if needs_value:
            message = f"{quoted(traced.module, node)} needs the value of a tensor during tracing"
            hint = "Keep it a tensor, and read the value from what the step returns."
            yield finding_at(RULE, traced, node, message, hint)
        return
    if name is not None and name.startswith(("numpy.", "math.")):
        last = name.rpartition(".")[2]
        tensor = _first_tensor(inference, node)
        if tensor is not None and last not in SHAPE_FUNCTIONS:
            library = "NumPy" if name.startswith("numpy.") else "math"
            message = (
                f"{quoted(traced.module, node)} passes the tensor "
                f"{quoted(traced.module, tensor)} to {library} during tracing"
            )
            hint = f"Use the TensorFlow operation on tensors, such as tf.math.{last}."
            yield finding_at(RULE, traced, node, message, hint)
        return
    if isinstance(func, ast.Name) and name is None:
        yield from _builtin(inference, traced, node, func.id)


def _formatted(
    inference: Inference, traced: Traced, node: ast.FormattedValue | ast.BinOp | ast.Call
) -> Iterator[Finding]:
    """Report a tensor in a text that formats it as a number."""
    tensor = next((part for part in _numbers_in(node) if inference.of(part).is_tensor), None)
    if tensor is not None:
        text = quoted(traced.module, tensor)
        message = f"the tensor {text} is formatted as a number during tracing"
        hint = "Return it from the step and format it on the host."
        yield finding_at(RULE, traced, tensor, message, hint)


def _numbers_in(node: ast.FormattedValue | ast.BinOp | ast.Call) -> list[ast.expr]:
    """The expressions that a text formats as numbers."""
    match node:
        case ast.FormattedValue(value=value, format_spec=ast.JoinedStr()):
            return [value] if node.conversion == -1 else []
        case ast.BinOp(left=ast.Constant(value=str() as text), op=ast.Mod(), right=right):
            values = right.elts if isinstance(right, ast.Tuple) else [right]
            kinds = NUMBER_FORMAT.findall(text.replace("%%", ""))
            return [value for kind, value in zip(kinds, values, strict=False) if kind not in "sra"]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() as text), attr="format")):
            arguments = {str(number): value for number, value in enumerate(node.args)}
            arguments |= {key.arg: key.value for key in node.keywords if key.arg}
            return [arguments[name] for name in _number_fields(text) if name in arguments]
    return []


def _number_fields(text: str) -> list[str]:
    """The names and positions that a format string formats as numbers; none if it is invalid."""
    try:
        fields = [part for part in Formatter().parse(text) if part[1] is not None]
    except ValueError:
        return []
    return [
        name or str(number)
        for number, (_, name, specification, conversion) in enumerate(fields)
        if specification and not conversion
    ]


def _first_tensor(inference: Inference, node: ast.Call) -> ast.expr | None:
    for arguments in [*node.args, *(key.value for key in node.keywords)]:
        value = inference.of(arguments)
        if value.is_symbolic or (value.is_container and _contains_tensor(value)):
            return arguments
    return None


def _contains_tensor(value: Value) -> bool:
    return any(item.is_symbolic for item in value.items or (value.inner,))


def _builtin(inference: Inference, traced: Traced, node: ast.Call, name: str) -> Iterator[Finding]:
    if inference.of(node.func).closure is not None or not node.args:
        return
    first = inference.of(node.args[0])
    others = [inference.of(part) for part in node.args]
    needs_value = False
    if name in ("max", "min"):
        needs_value = any(part.is_tensor for part in others)
        if len(others) == 1 and first.is_container:
            needs_value = _contains_tensor(first)
    elif name in ("any", "all"):
        needs_value = first.is_tensor or (first.is_container and _contains_tensor(first))
    elif name in NEVER_CONVERTED:
        needs_value = first.is_tensor
    elif name in NOT_WITHOUT_AUTOGRAPH and not traced.autograph:
        needs_value = any(part.is_tensor for part in others)
        parent = traced.module.parents.get(node)
        if isinstance(parent, ast.For) and parent.iter is node:
            return  # reported for the loop
    if needs_value:
        message = f"`{name}()` of a tensor in {quoted(traced.module, node)} during tracing"
        if name in NOT_WITHOUT_AUTOGRAPH:
            message += f", and {traced.no_autograph}"
        hint = {
            "max": "Use tf.maximum or tf.reduce_max.",
            "min": "Use tf.minimum or tf.reduce_min.",
            "sum": "Use tf.reduce_sum or tf.add_n.",
            "any": "Use tf.reduce_any.",
            "all": "Use tf.reduce_all.",
            "int": "Use tf.cast(…, tf.int32).",
            "float": "Use tf.cast(…, tf.float32).",
            "len": "Use the tensor's .shape[0].",
        }.get(name, "Keep it a tensor.")
        yield finding_at(RULE, traced, node, message, hint)
