"""Shapes that differ from batch to batch (TPU201 to TPU204)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.functions import argument, function_of, own_nodes
from tpuctl.preflight.inference import Inference, inferred
from tpuctl.preflight.kinds import Kind
from tpuctl.preflight.rules.places import at, shown
from tpuctl.preflight.rules.retracing import find_retraced
from tpuctl.preflight.source import Module, Project

__all__ = ["RULES", "find"]

_ANEW = "Each new shape is compiled anew, and a compilation costs as much as about 50 steps. "
RULES: tuple[Rule, ...] = (
    Rule(
        "TPU201",
        "last-batch",
        Severity.cost,
        "A last batch that is smaller than the others",
        f"{_ANEW}Without drop_remainder the size of a batch is unknown, and the last one of an "
        "epoch is smaller unless the number of examples divides evenly. To drop it changes what an "
        "evaluation says: pad there instead.",
        """\
import tensorflow as tf


def training_data(paths):
    data = tf.data.TFRecordDataset(paths).shuffle(1000)
    return data.batch(64)
""",
        """\
import tensorflow as tf


def training_data(paths):
    data = tf.data.TFRecordDataset(paths).shuffle(1000)
    return data.batch(64, drop_remainder=True)
""",
    ),
    Rule(
        "TPU202",
        "padding-to-longest",
        Severity.cost,
        "Padding to the longest example of each batch",
        f"{_ANEW}With raw lengths 40 batches took 32 compilations and 185 s; padded to multiples "
        "of 64 they took 2 and 19 s.",
        """\
import tensorflow as tf
from transformers import DataCollatorWithPadding


def collator(tokenizer):
    return DataCollatorWithPadding(tokenizer, return_tensors="tf")
""",
        """\
import tensorflow as tf
from transformers import DataCollatorWithPadding


def collator(tokenizer):
    return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=128, return_tensors="tf")
""",
    ),
    Rule(
        "TPU203",
        "padded-batch-shapes",
        Severity.cost,
        "A padded batch whose shape is not said",
        f"{_ANEW}padded_batch pads to the longest of each batch where padded_shapes does not say "
        "how far.",
        """\
import tensorflow as tf


def batches(data):
    return data.padded_batch(32, drop_remainder=True)
""",
        """\
import tensorflow as tf


def batches(data):
    return data.padded_batch(32, padded_shapes=[128], drop_remainder=True)
""",
    ),
    Rule(
        "TPU204",
        "python-number-argument",
        Severity.cost,
        "A Python number that changes is given to a tf.function",
        "A number of Python's is part of the program: each new value is traced and compiled anew. "
        "A tensor is an argument.",
        """\
import tensorflow as tf


@tf.function
def step(x, rate):
    return x * rate


def train(x):
    for epoch in range(100):
        x = step(x, 0.1 / (epoch + 1))
""",
        """\
import tensorflow as tf


@tf.function
def step(x, rate):
    return x * rate


def train(x):
    for epoch in range(100):
        x = step(x, tf.constant(0.1 / (epoch + 1)))
""",
    ),
)
# Methods that only data sets have.
DATA = {"shuffle", "prefetch", "repeat", "padded_batch", "interleave", "with_options", "unbatch"}
DATA |= {"cache", "as_numpy_iterator", "flat_map", "batch", "map", "take", "skip", "filter"}
EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluation|val|valid|validation|test|testing|dev|predict\w*|infer\w*)(?:_|$|\d)"
)
GIVEN_TO = {"evaluate", "predict"}
COLLATORS = {
    "DataCollatorWithPadding",
    "DataCollatorForLanguageModeling",
    "DataCollatorForWholeWordMask",
    "DataCollatorForTokenClassification",
    "DataCollatorForSeq2Seq",
}
TOKENIZERS = ("tokenizer", "tok", "processor", "feature_extractor")
LOOPS = (ast.For, ast.While, ast.AsyncFor, ast.ListComp, ast.GeneratorExp, ast.DictComp)


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield what breaks these rules."""
    known = inferred(project, target)
    uses_tensorflow = any(
        name == "tensorflow" or name.startswith(("tensorflow.", "keras", "tf_keras"))
        for module in project
        for name in module.names.known.values()
    )
    if not uses_tensorflow:
        return
    is_fixed = _is_length_fixed(project)
    for module in project:
        for node in module.calls:
            name = module.names.of(node.func)
            if isinstance(node.func, ast.Attribute) and name is None:
                if node.func.attr == "batch":
                    yield from _batch(known, module, node, node.func)
                elif node.func.attr in ("padded_batch", "bucket_by_sequence_length"):
                    yield from _padded(module, node, node.func.attr)
            elif name is not None and name.endswith(".bucket_by_sequence_length"):
                yield from _padded(module, node, "bucket_by_sequence_length")
            yield from _collator(module, node, name, is_fixed)
            yield from _tokenized(project, module, node)
    yield from find_retraced(project, known)


# Batches ------------------------------------------------------------------------------------


def _batch(
    known: Inference, module: Module, node: ast.Call, func: ast.Attribute
) -> Iterator[Finding]:
    if len(node.args) > 1 or any(key.arg in ("drop_remainder", None) for key in node.keywords):
        return
    if not node.args and not node.keywords:
        return
    before = list(_chain(module, func.value))
    if not _is_data(known, module, func.value, before):
        return
    if any(_is_endless(one) for one in before) or _is_for_evaluation(module, node):
        return
    if _divides(module, node, before):
        return
    message = f"the last batch of {shown(module, _named_part(node))} may be smaller than the others"
    text = module.segment(node)
    hint = f"For training: {text[:-1]}, drop_remainder=True)"
    yield at(module, _named_part(node), "TPU201", Severity.cost, message, hint)


def _named_part(node: ast.Call) -> ast.AST:
    """Where the method stands, not where its chain of calls begins."""
    func = node.func
    assert isinstance(func, ast.Attribute)
    made = ast.copy_location(ast.Attribute(func.value, func.attr, ast.Load()), node)
    made.lineno = func.end_lineno or node.lineno
    made.col_offset = (func.end_col_offset or 0) - len(func.attr)
    made.end_lineno, made.end_col_offset = node.end_lineno, node.end_col_offset
    return made


def _chain(module: Module, node: ast.AST) -> Iterator[ast.Call]:
    """The calls that a data set comes from, the last first, through names too."""
    seen: set[str] = set()
    while True:
        if isinstance(node, ast.Call):
            yield node
            if not isinstance(node.func, ast.Attribute):
                return
            node = node.func.value
        elif isinstance(node, ast.Name) and node.id not in seen:
            seen.add(node.id)
            around = module.function_around(node) or module.tree
            last: ast.AST | None = None
            for one in _assigned(module, around, node.id, node.lineno):
                yield from (part for part in ast.walk(one) if isinstance(part, ast.Call))
                last = one
            if last is None:
                return
            return
        else:
            return


def _assigned(module: Module, around: ast.AST, name: str, line: int) -> Iterator[ast.expr]:
    """What a name is given in a function before a line."""
    for node in ast.walk(around):
        if isinstance(node, ast.Assign) and node.lineno <= line:
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    yield node.value


def _is_data(known: Inference, module: Module, node: ast.expr, before: list[ast.Call]) -> bool:
    value = known.host_value(module, node)
    if value.kind is Kind.OBJECT and value.name.startswith("tensorflow.data"):
        return True
    if value.is_symbolic or value.kind is Kind.STATIC:
        return False
    names = [module.names.of(one.func) or "" for one in before]
    if any(name.startswith(("tensorflow.data.", "tensorflow_datasets.")) for name in names):
        return True
    methods = {one.func.attr for one in before if isinstance(one.func, ast.Attribute)}
    return bool(methods & DATA) or (
        isinstance(node, ast.Name)
        and bool(re.search(r"(?:^|_)(?:ds|data|dataset|datasets)(?:_|$|\d)", node.id))
    )


def _is_endless(node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "repeat":
        return False
    count = argument(node, 0, "count")
    if count is None:
        return True
    if isinstance(count, ast.UnaryOp) and isinstance(count.op, ast.USub):
        return True
    return isinstance(count, ast.Constant) and count.value is None


def _is_for_evaluation(module: Module, node: ast.AST) -> bool:
    """Whether what is made is named for evaluation, or given to it."""
    for one in module.around(node):
        if isinstance(one, ast.Assign):
            for target in one.targets:
                if isinstance(target, ast.Name) and EVALUATES.search(target.id.lower()):
                    return True
                if isinstance(target, ast.Name) and _is_evaluated(module, target):
                    return True
        elif (isinstance(one, ast.keyword) and one.arg and EVALUATES.search(one.arg.lower())) or (
            isinstance(one, ast.Call) and getattr(one.func, "attr", "") in GIVEN_TO
        ):
            return True
        elif isinstance(one, ast.FunctionDef):
            if EVALUATES.search(one.name.lower()):
                return True
        elif isinstance(one, ast.If) and EVALUATES.search(module.segment(one.test).lower()):
            return True
    return False


def _is_evaluated(module: Module, target: ast.Name) -> bool:
    """Whether a name is given to evaluation, and to no training."""
    around = module.function_around(target) or module.tree
    uses: set[str] = set()
    for node in ast.walk(around):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = [*node.args, *(key.value for key in node.keywords if key.arg == "x")]
            if any(isinstance(one, ast.Name) and one.id == target.id for one in given):
                uses.add(node.func.attr)
            for key in node.keywords:
                if isinstance(key.value, ast.Name) and key.value.id == target.id:
                    uses.add(key.arg or "")
    return bool(uses & {"evaluate", "predict", "validation_data"}) and "fit" not in uses


# How many examples there are ----------------------------------------------------------------

KEEPS = {"shuffle", "map", "cache", "prefetch", "with_options", "enumerate", "filter_by_shard"}


def _divides(module: Module, node: ast.Call, before: list[ast.Call]) -> bool:
    """Whether the number of examples is known, and divides evenly."""
    size = _number(module, argument(node, 0, "batch_size"))
    if not size:
        return False
    factor = 1
    for one in before:
        last = getattr(one.func, "attr", "")
        if last == "repeat":
            factor *= _number(module, argument(one, 0, "count")) or 1
        elif last in ("take",):
            count = _number(module, argument(one, 0, "count"))
            return count is not None and count * factor % size == 0
        elif last == "range" and len(one.args) == 1:
            count = _number(module, one.args[0])
            return count is not None and count * factor % size == 0
        elif last in ("from_tensor_slices", "from_tensors"):
            count = _length(module, one.args[0]) if one.args else None
            return count is not None and count * factor % size == 0
        elif last not in KEEPS:
            return False
    return False


def _number(module: Module, node: ast.expr | None, depth: int = 0) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _number(module, node.left, depth), _number(module, node.right, depth)
        return left * right if left is not None and right is not None else None
    value = _only_value(module, node)
    return None if value is None or depth > 5 else _number(module, value, depth + 1)


def _only_value(module: Module, node: ast.expr | None) -> ast.expr | None:
    """What a name is given, where that is one thing only."""
    if not isinstance(node, ast.Name):
        return None
    for around in (module.function_around(node), module.tree):
        if around is None:
            continue
        found = list(_assigned(module, around, node.id, 1 << 30))
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _length(module: Module, node: ast.expr, depth: int = 0) -> int | None:
    """The first dimension of an array or a structure of them."""
    if isinstance(node, (ast.Tuple, ast.Dict)) and depth < 5:
        parts = node.elts if isinstance(node, ast.Tuple) else node.values
        found = (_length(module, part, depth + 1) for part in parts)
        return next((one for one in found if one is not None), None)
    if isinstance(node, ast.List):
        return len(node.elts)
    if isinstance(node, ast.Call):
        return _made_length(module, node, depth)
    value = _only_value(module, node)
    return None if value is None or depth > 5 else _length(module, value, depth + 1)


def _made_length(module: Module, node: ast.Call, depth: int) -> int | None:
    last = getattr(node.func, "attr", "")
    if last in ("astype", "reshape") and isinstance(node.func, ast.Attribute) and depth < 5:
        return _length(module, node.func.value, depth + 1) if last == "astype" else None
    name = module.names.of(node.func) or ""
    if not name.startswith(("numpy.", "tensorflow.")):
        return None
    if last in ("rand", "randn"):
        return _number(module, node.args[0]) if node.args else None
    if last in ("arange", "range"):
        return _number(module, node.args[0]) if len(node.args) == 1 else None
    places = {"randint": 2, "standard_normal": 0, "random": 0, "zeros": 0, "ones": 0}
    places |= {"normal": 0 if name.startswith("tensorflow") else 2, "full": 0, "fill": 0}
    places |= {"uniform": 0 if name.startswith("tensorflow") else 2}
    if last not in places:
        return None
    shape = argument(node, places[last], "size") or argument(node, places[last], "shape")
    if isinstance(shape, (ast.Tuple, ast.List)):
        return _number(module, shape.elts[0]) if shape.elts else None
    return _number(module, shape)


# Padding ------------------------------------------------------------------------------------


def _padded(module: Module, node: ast.Call, method: str) -> Iterator[Finding]:
    if method == "bucket_by_sequence_length":
        if any(
            key.arg in ("pad_to_bucket_boundary", "padded_shapes", None) for key in node.keywords
        ):
            return
        message = f"{shown(module, node.func)} pads to the longest of each batch"
        hint = "Pad to the end of each bucket: pad_to_bucket_boundary=True."
        yield at(module, node, "TPU203", Severity.cost, message, hint)
        return
    if any(key.arg is None for key in node.keywords):
        return
    shapes = argument(node, 1, "padded_shapes")
    if shapes is not None and not _has_open_part(shapes):
        return
    message = f"{shown(module, _named_part(node))} pads to the longest of each batch"
    hint = "Say how far to pad: padded_shapes=… with a number for each dimension."
    yield at(module, _named_part(node), "TPU203", Severity.cost, message, hint)


def _has_open_part(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(_has_open_part(one) for one in node.elts)
    if isinstance(node, ast.Dict):
        return any(_has_open_part(one) for one in node.values)
    if isinstance(node, ast.Call):
        return any(_has_open_part(one) for one in node.args)
    return False


def _is_length_fixed(project: Project) -> bool:
    """Whether texts are brought to one length somewhere before they are collated."""
    for module in project:
        for call in module.calls:
            for key in call.keywords:
                if isinstance(key.value, ast.Constant) and (
                    (key.arg == "padding" and key.value.value == "max_length")
                    or (key.arg == "pad_to_max_length" and key.value.value is True)
                ):
                    return True
        if re.search(r"def (?:group|pack|chunk|concatenate)_\w*", module.text):
            return True
    return False


def _collator(
    module: Module, node: ast.Call, name: str | None, is_fixed: bool
) -> Iterator[Finding]:
    last = (name or "").rpartition(".")[2]
    is_preparing = (
        isinstance(node.func, ast.Attribute)
        and node.func.attr == "prepare_tf_dataset"
        and any(key.arg == "tokenizer" for key in node.keywords)
        and not any(key.arg == "collate_fn" for key in node.keywords)
    )
    if is_fixed or not (is_preparing or (last in COLLATORS and name is not None)):
        return
    for key in node.keywords:
        if key.arg in ("pad_to_multiple_of", None):
            return
        if key.arg == "padding" and isinstance(key.value, ast.Constant):
            if key.value.value in ("max_length", False, "do_not_pad"):
                return
        if key.arg == "return_tensors" and getattr(key.value, "value", "tf") not in ("tf", "np"):
            return
    message = f"{shown(module, node.func)} pads to the longest of each batch"
    hint = "Pad to a multiple, which leaves few shapes: pad_to_multiple_of=128"
    if is_preparing:
        hint = "Give it a collate_fn that pads with pad_to_multiple_of=128."
    yield at(module, node, "TPU202", Severity.cost, message, hint)


def _tokenized(project: Project, module: Module, node: ast.Call) -> Iterator[Finding]:
    func = node.func
    path = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    owner = func.value if isinstance(func, ast.Attribute) else None
    owned = getattr(owner, "id", getattr(owner, "attr", "")).lower()
    is_tokenizer = path.lower().endswith(TOKENIZERS) or (
        path in ("batch_encode_plus", "encode_batch", "pad", "__call__")
        and owned.endswith(TOKENIZERS)
    )
    if not is_tokenizer:
        return
    named = {key.arg: key.value for key in node.keywords}
    padding = named.get("padding", named.get("pad_to_longest"))
    is_longest = isinstance(padding, ast.Constant) and padding.value in (True, "longest")
    if not is_longest or "pad_to_multiple_of" in named or None in named:
        return
    if not _is_repeated(project, module, node):
        return
    assert padding is not None
    message = f"{shown(module, func)} pads to the longest of each batch"
    hint = "Pad to a multiple, which leaves few shapes: pad_to_multiple_of=128"
    yield at(module, node, "TPU202", Severity.cost, message, hint)


def _is_repeated(project: Project, module: Module, node: ast.AST) -> bool:
    """Whether it runs more than once: in a loop, or in a function that is mapped."""
    function = None
    for one in module.around(node):
        if isinstance(one, LOOPS):
            return True
        if isinstance(one, (ast.FunctionDef, ast.Lambda)):
            function = one
            break
    if function is None:
        return False
    if isinstance(function, ast.FunctionDef) and function.name in ("__getitem__", "__iter__"):
        return True
    for where in project:
        for call in where.calls:
            given = [*call.args, *(key.value for key in call.keywords)]
            attribute = getattr(call.func, "attr", "")
            is_map = attribute in ("map", "with_transform", "set_transform", "to_tf_dataset")
            for one in given if is_map or attribute == "from_generator" else ():
                told = function_of(project, where, one)
                if told is not None and told[1] is function:
                    return True
            called = getattr(call.func, "id", attribute)
            if called == getattr(function, "name", None):
                told = function_of(project, where, call.func)
                is_same = told is not None and told[1] is function
                if is_same and any(isinstance(one, LOOPS) for one in where.around(call)):
                    return True
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own_nodes(function))
