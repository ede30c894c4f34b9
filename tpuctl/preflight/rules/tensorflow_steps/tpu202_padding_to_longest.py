"""TPU202 padding-to-longest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import own_nodes
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import NEW_SHAPE

RULE = Rule(
    code="TPU202",
    name="padding-to-longest",
    severity=Severity.cost,
    summary="Batches padded to their longest example",
    rationale=(
        f"{NEW_SHAPE}In one test, 40 batches padded to their longest examples took 32 compilations "
        "and 185 s; padded to multiples of 64, they took 2 compilations and 19 s."
    ),
    bad="""\
import tensorflow as tf
from transformers import DataCollatorWithPadding


def collator(tokenizer):
    return DataCollatorWithPadding(tokenizer, return_tensors="tf")
""",
    good="""\
import tensorflow as tf
from transformers import DataCollatorWithPadding


def collator(tokenizer):
    return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=128, return_tensors="tf")
""",
)

COLLATORS = {
    "DataCollatorWithPadding",
    "DataCollatorForLanguageModeling",
    "DataCollatorForWholeWordMask",
    "DataCollatorForTokenClassification",
    "DataCollatorForSeq2Seq",
}
TOKENIZERS = ("tokenizer", "tok", "processor", "feature_extractor")
PACKS = re.compile(r"(?:group|pack|chunk|concatenate)_")  # functions that pack texts
LOOPS = (ast.For, ast.While, ast.AsyncFor, ast.ListComp, ast.GeneratorExp, ast.DictComp)


def find(project: Project, target: Target) -> Iterator[Finding]:
    is_fixed = _is_length_fixed(project)
    for module in project:
        for node in module.calls:
            if not is_fixed:
                yield from _collated(module, node)
            yield from _tokenized(project, module, node)


def _is_length_fixed(project: Project) -> bool:
    """Whether the project pads or packs texts to one length before they are collated."""
    for module in project:
        for call in module.calls:
            for key in call.keywords:
                if isinstance(key.value, ast.Constant) and (
                    (key.arg == "padding" and key.value.value == "max_length")
                    or (key.arg == "pad_to_max_length" and key.value.value is True)
                ):
                    return True
        if any(PACKS.match(node.name) for node in module.of_types(ast.FunctionDef)):
            return True
    return False


def _collated(module: Module, node: ast.Call) -> Iterator[Finding]:
    name = module.names.of(node.func)
    is_prepare_tf_dataset = (
        isinstance(node.func, ast.Attribute)
        and node.func.attr == "prepare_tf_dataset"
        and any(key.arg == "tokenizer" for key in node.keywords)
        and not any(key.arg == "collate_fn" for key in node.keywords)
    )
    if not is_prepare_tf_dataset and (name or "").rpartition(".")[2] not in COLLATORS:
        return
    for key in node.keywords:
        if key.arg in ("pad_to_multiple_of", None):
            return
        value = key.value.value if isinstance(key.value, ast.Constant) else None
        if key.arg == "padding" and value in ("max_length", False, "do_not_pad"):
            return
        if key.arg == "return_tensors" and value == "pt":
            return
    message = f"{quoted(module, node.func)} pads to the longest example of each batch"
    hint = "Pad to a multiple to limit the number of shapes: pad_to_multiple_of=128"
    if is_prepare_tf_dataset:
        hint = "Pass a collate_fn that pads with pad_to_multiple_of=128."
    yield finding_at(RULE, module, node, message, hint)


def _tokenized(project: Project, module: Module, node: ast.Call) -> Iterator[Finding]:
    func = node.func
    path = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    owner = func.value if isinstance(func, ast.Attribute) else None
    owner_name = getattr(owner, "id", getattr(owner, "attr", "")).lower()
    is_tokenizer = path.lower().endswith(TOKENIZERS) or (
        path in ("batch_encode_plus", "encode_batch", "pad", "__call__")
        and owner_name.endswith(TOKENIZERS)
    )
    if not is_tokenizer:
        return
    keywords = {key.arg: key.value for key in node.keywords}
    padding = keywords.get("padding", keywords.get("pad_to_longest"))
    is_longest = isinstance(padding, ast.Constant) and padding.value in (True, "longest")
    if not is_longest or "pad_to_multiple_of" in keywords or None in keywords:
        return
    if not _is_repeated(project, module, node):
        return
    assert padding is not None
    message = f"{quoted(module, func)} pads to the longest example of each batch"
    hint = "Pad to a multiple to limit the number of shapes: pad_to_multiple_of=128"
    yield finding_at(RULE, module, node, message, hint)


def _is_repeated(project: Project, module: Module, node: ast.AST) -> bool:
    """Whether a call runs more than once: in a loop, or in a mapped function."""
    function = None
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, LOOPS):
            return True
        if isinstance(ancestor, (ast.FunctionDef, ast.Lambda)):
            function = ancestor
            break
    if function is None:
        return False
    if isinstance(function, ast.FunctionDef) and function.name in ("__getitem__", "__iter__"):
        return True
    for where in project:
        for call in where.calls:
            arguments = [*call.args, *(key.value for key in call.keywords)]
            attribute = getattr(call.func, "attr", "")
            is_map = attribute in ("map", "with_transform", "set_transform", "to_tf_dataset")
            for ancestor in arguments if is_map or attribute == "from_generator" else ():
                definition = function_of(project, where, ancestor)
                if definition is not None and definition[1] is function:
                    return True
            called = getattr(call.func, "id", attribute)
            if called == getattr(function, "name", None):
                definition = function_of(project, where, call.func)
                is_same = definition is not None and definition[1] is function
                if is_same and any(
                    isinstance(ancestor, LOOPS) for ancestor in where.ancestors(call)
                ):
                    return True
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own_nodes(function))
