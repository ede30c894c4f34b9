"""TPU401 redundant-jit-compile."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import (
    edit_of,
    finding_at,
    is_conditional_on,
    keyword_edit,
)
from tpuctl.preflight.findings import Edit, Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU401",
    name="redundant-jit-compile",
    severity=Severity.risk,
    summary="`jit_compile=True` is for GPUs and CPUs: TPU code is always compiled",
    rationale=(
        "Everything that runs on a TPU is compiled. The flag requests another compilation, nested "
        "in the first one or for the machine's CPU, and breaks some programs that work without it."
    ),
    bad="""\
import keras

model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", jit_compile=True)
""",
    good="""\
import keras

model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", jit_compile=False)
""",
)

FUNCTIONS = ("tensorflow.function", "functools.partial")
DEVICE_WORDS = ("gpu", "cpu", "tpu", "strategy", "replica", "accelerator", "xla")


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for call in module.calls:
            for keyword in call.keywords:
                is_on = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                if keyword.arg not in ("jit_compile", "experimental_compile") or not is_on:
                    continue
                if _takes_flag(module, call) and not is_conditional_on(module, call, DEVICE_WORDS):
                    text = f"`{keyword.arg}=True` is redundant: TPU code is always compiled"
                    edits = _without_flag(module, call, keyword)
                    yield finding_at(RULE, module, keyword, text, _hint(module, call), edits=edits)


def _takes_flag(module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func)
    if name == "functools.partial" and call.args:
        name = module.names.of(call.args[0])
    is_compile = isinstance(call.func, ast.Attribute) and call.func.attr == "compile"
    optimizer = (keras_name(name) or "").startswith("optimizers.")
    return name == "tensorflow.function" or (is_compile and name is None) or optimizer


def _hint(module: Module, call: ast.Call) -> str:
    if module.names.of(call.func) in FUNCTIONS:
        return "Remove it for the TPU."
    return "Set jit_compile=False for the TPU."


def _without_flag(module: Module, call: ast.Call, keyword: ast.keyword) -> list[Edit]:
    """Remove the flag from `tf.function`; set it to False for Keras, whose default is "auto"."""
    if keyword.arg == "jit_compile" and module.names.of(call.func) not in FUNCTIONS:
        return [edit_of(module, keyword.value, "False")]
    edit = keyword_edit(module, call, keyword)
    return [edit] if edit is not None else []
