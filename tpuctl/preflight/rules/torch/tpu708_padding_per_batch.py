"""TPU708 padding-per-batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import training_loops
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

accelerator = Accelerator()
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")


def collate(texts):
"""
LOADER = """

loader = DataLoader(["a text", "another"] * 32, batch_size=8, collate_fn=collate, drop_last=True)
batches = accelerator.prepare(loader)
"""

RULE = Rule(
    code="TPU708",
    name="padding-per-batch",
    severity=Severity.cost,
    summary="Batches for PyTorch/XLA are padded to the longest example of each batch",
    rationale=(
        "`padding=True`, `padding='longest'`, and `DataCollatorWithPadding` pad to the longest "
        "example of a batch, so that batches have many lengths. XLA compiles the whole step again "
        "for each. With `padding='max_length'` all batches have one length; `max_length` alone "
        "only truncates."
    ),
    bad=SCRIPT + '    return tokenizer(texts, padding=True, return_tensors="pt")\n' + LOADER,
    good=SCRIPT
    + "    return tokenizer(\n"
    + '        texts, padding="max_length", max_length=128, truncation=True, return_tensors="pt"\n'
    + "    )\n"
    + LOADER,
)

COLLATORS = {
    f"transformers.{name}": number
    for name, number in {
        "DataCollatorWithPadding": 1,
        "DataCollatorForTokenClassification": 1,
        "DataCollatorForSeq2Seq": 2,
        "DataCollatorForMultipleChoice": 1,
    }.items()
}
FEW_LENGTHS = 32  # between lengths
PADDING_FUNCTION = "torch.nn.utils.rnn.pad_sequence"
HINT = 'Pad to one length: padding="max_length", max_length=128.'


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for call in module.calls if "max_length" not in project.texts else ():
            number = COLLATORS.get(module.names.of(call.func) or "")
            if number is None or _is_in_steps(call):
                continue
            if _is_longest(argument(call, number, "padding"), True):
                yield _finding(module, call)
    for module, scope in _batch_scopes(project):
        for node in scope:
            if isinstance(node, ast.Call) and _pads(module, node):
                yield _finding(module, node)


def _finding(module: Module, call: ast.Call) -> Finding:
    message = f"{quoted(module, call)} pads each batch to a length of its own"
    return finding_at(RULE, module, call, message, HINT)


def _pads(module: Module, call: ast.Call) -> bool:
    """Whether a call pads to the longest of its examples."""
    if module.names.of(call.func) == PADDING_FUNCTION:
        return True
    if module.names.of(call.func) is not None or _is_in_steps(call):
        return False
    is_pad = isinstance(call.func, ast.Attribute) and call.func.attr == "pad"
    takes_padding = any(keyword.arg == "padding" for keyword in call.keywords)
    return takes_padding and _is_longest(argument(call, -1, "padding"), is_pad)


def _is_in_steps(call: ast.Call) -> bool:
    """Whether lengths are rounded up so far that few remain."""
    multiple = getattr(argument(call, -1, "pad_to_multiple_of"), "value", 0)
    return isinstance(multiple, int) and multiple >= FEW_LENGTHS


def _is_longest(padding: ast.expr | None, default: bool) -> bool:
    if padding is None:
        return default
    return getattr(padding, "value", None) in (True, "longest")


def _batch_scopes(project: Project) -> Iterator[tuple[Module, list[ast.AST]]]:
    """The code that makes each batch: training loops, and functions for loaders and trainers."""
    for loop in training_loops(project):
        yield loop.module, list(loop.nodes)
    seen: set[ast.AST] = set()
    for module in project:
        for call in module.calls:
            for keyword in call.keywords:
                if keyword.arg not in ("collate_fn", "data_collator"):
                    continue
                function = function_of(project, module, keyword.value)
                if function is not None and function[1] not in seen:
                    seen.add(function[1])
                    yield function[0], list(ast.walk(function[1]))
