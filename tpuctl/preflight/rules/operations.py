"""Operations that XLA has not, and values taken in Python (TPU004, TPU005, TPU006)."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.preflight.analysis.abstract_values import Kind, Value
from tpuctl.preflight.analysis.inference import Inference, inferred
from tpuctl.preflight.analysis.library import short
from tpuctl.preflight.analysis.names import keras_name
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.syntax import argument
from tpuctl.preflight.analysis.traced import Traced
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules.places import at, shown

__all__ = ["RULES", "find"]

RULES: tuple[Rule, ...] = (
    Rule(
        "TPU004",
        "operation-without-kernel",
        Severity.error,
        "An operation that XLA has not, in code that is compiled",
        "A TPU runs only what XLA can compile. Python functions, printing, strings, parsing and "
        "decoding, hash tables, sets, most of `tf.sparse`, sorted segments and data sets are not "
        'among it: the step is refused with "Detected unsupported operations". The same in '
        "`dataset.map` is fine: that runs on the host.",
        """\
import tensorflow as tf


@tf.function
def step(x):
    tf.print("largest", tf.reduce_max(x))
    return x * 2
""",
        """\
import tensorflow as tf


@tf.function
def step(x):
    return x * 2, tf.reduce_max(x)


def train(x):
    _, largest = step(x)
    tf.print("largest", largest)
""",
    ),
    Rule(
        "TPU005",
        "value-in-python",
        Severity.error,
        "A tensor's value is asked for in Python while it is traced",
        "While a program is traced a tensor has no value: `.numpy()`, NumPy's functions, `bool()`, "
        "`max()` and the like fail, as do `int()` and `float()` where autograph does not convert "
        "them.",
        """\
import tensorflow as tf


@tf.function
def step(x):
    loss = tf.reduce_mean(x)
    return loss.numpy()
""",
        """\
import tensorflow as tf


@tf.function
def step(x):
    return tf.reduce_mean(x)


def train(x):
    print(step(x).numpy())
""",
    ),
    Rule(
        "TPU006",
        "check-is-lost",
        Severity.risk,
        "A check that is silently left out on a TPU",
        "XLA leaves out `tf.debugging.assert_…`, `tf.Assert` and `check_numerics`: what they were "
        "to stop goes on.",
        """\
import tensorflow as tf


@tf.function
def step(x):
    loss = tf.reduce_mean(x)
    tf.debugging.assert_less(loss, 1e4)
    return loss
""",
        """\
import tensorflow as tf


@tf.function
def step(x):
    return tf.reduce_mean(x)


def train(x):
    tf.debugging.assert_less(step(x), 1e4)
""",
    ),
)
DATA = Path(__file__).with_name("operations.toml")
SUMMARIES = {"scalar", "histogram", "image", "text", "audio", "write"}
WRITERS = {"tensorflow.summary.create_file_writer", "tensorflow.summary.SummaryWriter"}
REFUSED_RESIZES = ("area", "bicubic", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
REFUSED_LAYERS = {"layers.TextVectorization", "layers.StringLookup", "layers.IntegerLookup"}
# Checks of types and ranks are made while tracing.
TRACED_CHECKS = {"assert_rank", "assert_rank_at_least", "assert_rank_in", "assert_type"}
TRACED_CHECKS |= {"assert_scalar", "assert_same_float_dtype", "assert_shapes", "assert_integer"}
TRACED_CHECKS |= {"assert_proper_iterable"}
NEVER_CONVERTED = {"bool", "max", "min", "sum", "any", "all", "list", "tuple", "set", "complex"}
NOT_WITHOUT_AUTOGRAPH = {"int", "float", "len", "range", "sorted", "enumerate", "round"}
NUMPY_OF_SHAPES = {"shape", "ndim", "size", "dtype", "isscalar", "iterable"}
INSTEAD = {
    "print": "Return the value from the step and print it on the host.",
    "py_function": "Write it with TensorFlow's operations, or do it in dataset.map on the host.",
    "numpy_function": "Write it with TensorFlow's operations, or do it in dataset.map on the host.",
    "math.segment_sum": "Use tf.math.unsorted_segment_sum with a num_segments that is known.",
    "math.segment_mean": "Use tf.math.unsorted_segment_mean with a num_segments that is known.",
    "math.segment_max": "Use tf.math.unsorted_segment_max with a num_segments that is known.",
    "math.segment_min": "Use tf.math.unsorted_segment_min with a num_segments that is known.",
    "image.combined_non_max_suppression": "Use tf.image.non_max_suppression_padded.",
    "math.reduce_euclidean_norm": "Use tf.norm.",
    "linalg.det": "Multiply the diagonal of tf.linalg.cholesky or of tf.linalg.qr.",
    "linalg.slogdet": "Use tf.linalg.logdet where the matrix is positive definite.",
    "sparse.sparse_dense_matmul": "Use tf.matmul on a dense matrix, or tf.gather and a sum.",
    "nn.sampled_softmax_loss": "Use the whole softmax, or draw the candidates in dataset.map.",
    "nn.nce_loss": "Use the whole softmax, or draw the candidates in dataset.map.",
}
ON_HOST = "Do it in dataset.map, which runs on the host, or after the step."


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(DATA.read_text("utf-8"))


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield what breaks these rules."""
    known = inferred(project, target)
    has_writer = any(
        module.names.of(call.func) in WRITERS for module in project for call in module.calls
    )
    for one, node in known.sites():
        if isinstance(node, ast.Call):
            yield from _refused(known, one, node, has_writer)
            yield from _valued(known, one, node)
            yield from _lost(known, one, node)
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from _data_set(known, one, node.iter)
        elif isinstance(node, ast.Subscript):
            owner = known.of(node.value)
            if owner.kind is Kind.OBJECT and owner.name.startswith("tensorflow.lookup."):
                yield _table(one, node)


def _refused(known: Inference, one: Traced, node: ast.Call, has_writer: bool) -> Iterator[Finding]:
    name = one.module.names.of(node.func)
    inside = short(name) if name is not None else None
    if inside is None:
        yield from _method(known, one, node)
        return
    made: list[str] = _data()["refused"].get(inside, [])
    if inside.startswith("raw_ops."):
        operation = inside.removeprefix("raw_ops.")
        made = [] if operation in _data()["has"] else [operation]
    if inside == "image.resize":
        made = _resize(one, node)
    if inside.startswith("summary.") and inside.removeprefix("summary.") in SUMMARIES:
        made = ["WriteSummary"] if has_writer else []
    if inside == "unique_with_counts" or inside.startswith("ragged."):
        return  # told by the rules about shapes
    if made:
        ops = " or ".join(made[:2])
        message = f"{shown(one.module, node.func)} makes {ops}, which XLA has not for a TPU"
        if not one.is_root:
            message += f" ({one.because})"
        hint = INSTEAD.get(inside, ON_HOST)
        yield at(one, node, "TPU004", Severity.error, message, hint)


def _resize(one: Traced, node: ast.Call) -> list[str]:
    if any(
        key.arg == "antialias" and isinstance(key.value, ast.Constant) and key.value.value is True
        for key in node.keywords
    ):
        return ["ScaleAndTranslate"]
    method = argument(node, 2, "method")
    text = ""
    if isinstance(method, ast.Constant):
        text = str(method.value)
    elif isinstance(method, ast.Attribute):
        text = method.attr.lower()
    if text not in REFUSED_RESIZES:
        return []
    return [{"area": "ResizeArea", "bicubic": "ResizeBicubic"}.get(text, "ScaleAndTranslate")]


def _method(known: Inference, one: Traced, node: ast.Call) -> Iterator[Finding]:
    owner = known.of(node.func)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "lookup":
        table = known.of(node.func.value)
        if table.kind is Kind.OBJECT and table.name.startswith("tensorflow.lookup."):
            yield _table(one, node)
    if owner.kind is Kind.OBJECT and keras_name(owner.name) in REFUSED_LAYERS and node.args:
        kind = owner.name.rpartition(".")[2]
        message = f"{shown(one.module, node.func)} is a {kind}, whose table XLA has not"
        hint = "Call the layer in dataset.map, which runs on the host."
        yield at(one, node, "TPU004", Severity.error, message, hint)


def _table(one: Traced, node: ast.AST) -> Finding:
    message = f"{shown(one.module, node)} looks into a hash table, which XLA has not for a TPU"
    return at(one, node, "TPU004", Severity.error, message, ON_HOST)


def _data_set(known: Inference, one: Traced, node: ast.expr) -> Iterator[Finding]:
    over = known.of(node)
    if over.kind is not Kind.OBJECT or not over.name.startswith("tensorflow.data."):
        return
    if one.is_own_program and not _is_compiled(one) and not one.calls:
        return  # a loop of the host's around the steps
    message = f"takes from the data set {shown(one.module, node)} in code that is compiled"
    hint = "Take the batches on the host and hand each one to the step."
    yield at(one, node, "TPU004", Severity.error, message, hint)


def _is_compiled(one: Traced) -> bool:
    for decorator in getattr(one.node, "decorator_list", []):
        for key in getattr(decorator, "keywords", []):
            if key.arg == "jit_compile":
                return isinstance(key.value, ast.Constant) and key.value.value is True
    return False


# Values -------------------------------------------------------------------------------------


def _valued(known: Inference, one: Traced, node: ast.Call) -> Iterator[Finding]:
    func = node.func
    name = one.module.names.of(func)
    if isinstance(func, ast.Attribute) and name is None:
        owner = known.of(func.value)
        is_asked = func.attr == "numpy" and not node.args and owner.kind >= Kind.UNKNOWN
        is_asked = is_asked or (func.attr in ("item", "tolist", "eval") and owner.is_tensor)
        if is_asked:
            message = f"{shown(one.module, node)} asks for a value while it is traced"
            hint = "Keep it a tensor; ask for the value of what the step returns."
            yield at(one, node, "TPU005", Severity.error, message, hint)
        return
    if name is not None and name.startswith(("numpy.", "math.")):
        last = name.rpartition(".")[2]
        tensor = _first_tensor(known, node)
        if tensor is not None and last not in NUMPY_OF_SHAPES:
            library = "NumPy" if name.startswith("numpy.") else "math"
            message = (
                f"{shown(one.module, node)} hands the tensor {shown(one.module, tensor)} to "
                f"{library} while it is traced"
            )
            hint = f"Use TensorFlow's own, such as tf.math.{last}, on tensors."
            yield at(one, node, "TPU005", Severity.error, message, hint)
        return
    if isinstance(func, ast.Name) and name is None:
        yield from _builtin(known, one, node, func.id)


def _first_tensor(known: Inference, node: ast.Call) -> ast.expr | None:
    for given in [*node.args, *(key.value for key in node.keywords)]:
        value = known.of(given)
        if value.is_symbolic or (value.is_container and _holds(value)):
            return given
    return None


def _is_computed(value: Value) -> bool:
    if value.is_container:
        return any(item.kind >= Kind.TENSOR for item in value.items or (value.inner,))
    return value.kind >= Kind.TENSOR


def _holds(value: Value) -> bool:
    return any(item.is_symbolic for item in value.items or (value.inner,))


def _builtin(known: Inference, one: Traced, node: ast.Call, name: str) -> Iterator[Finding]:
    if known.of(node.func).closure is not None or not node.args:
        return
    given = known.of(node.args[0])
    others = [known.of(part) for part in node.args]
    is_asked = False
    if name in ("max", "min"):
        is_asked = any(part.is_tensor for part in others)
        if len(others) == 1 and given.is_container:
            is_asked = _holds(given)
    elif name in ("any", "all"):
        is_asked = given.is_tensor or (given.is_container and _holds(given))
    elif name in NEVER_CONVERTED:
        is_asked = given.is_tensor
    elif name in NOT_WITHOUT_AUTOGRAPH and not one.autograph:
        is_asked = any(part.is_tensor for part in others)
        parent = one.module.parents.get(node)
        if isinstance(parent, ast.For) and parent.iter is node:
            return  # told of the loop
    if is_asked:
        message = f"`{name}()` of a tensor in {shown(one.module, node)} while it is traced"
        if name in NOT_WITHOUT_AUTOGRAPH:
            message += f", and {one.no_autograph}"
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
        yield at(one, node, "TPU005", Severity.error, message, hint)


# Checks -------------------------------------------------------------------------------------


def _lost(known: Inference, one: Traced, node: ast.Call) -> Iterator[Finding]:
    name = one.module.names.of(node.func)
    inside = short(name) if name is not None else None
    if inside is None:
        return
    last = inside.rpartition(".")[2]
    is_check = inside == "Assert" or (
        inside.startswith(("debugging.", "assert_"))
        and last.startswith(("assert_", "check_numerics", "Assert"))
        and last not in TRACED_CHECKS
    )
    if not is_check or last == "enable_check_numerics":
        return
    parts = [known.of(part) for part in node.args[:2]]
    if not any(_is_computed(part) for part in parts):
        return  # known while it is traced
    message = f"{shown(one.module, node.func)} is left out on a TPU"
    hint = "Return what it looks at from the step, and check it on the host."
    yield at(one, node, "TPU006", Severity.risk, message, hint)
