"""TPU710 precision-of-gpus."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.usage import ACCELERATORS, LIGHTNING
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU710",
    name="precision-of-gpus",
    severity=Severity.risk,
    summary="PyTorch trains in float16 or float64, which TPUs do not compute with",
    rationale=(
        "TPUs multiply in bfloat16, which has the range of float32 and needs no scaling of the "
        "loss. Accelerate refuses `mixed_precision='fp16'` on a TPU with a ValueError, and so do "
        "trainers that use it, and Lightning. XLA computes float64 as pairs of float32, many times "
        "slower."
    ),
    bad="""\
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="fp16")
""",
    good="""\
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="bf16")
""",
)

ARGUMENTS = re.compile(r"(?:transformers|trl)\..*(?:Arguments|Config)")
LIGHTNING_CLASSES = re.compile(rf"{LIGHTNING}\.(?:Trainer|Fabric)")
LIGHTNING_PRECISIONS = (16, "16", "16-mixed", 64, "64", "64-true")
DTYPES = ("torch.float16", "torch.half", "torch.float64", "torch.double")


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for call in module.calls:
            if _is_unsupported(module, call):
                message = f"{quoted(module, call)} asks for a precision that TPUs do not have"
                yield finding_at(RULE, module, call, message, "Use bfloat16 (bf16).")


def _is_unsupported(module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func) or ""

    def value_of(keyword: str) -> object:
        return getattr(argument(call, -1, keyword), "value", None)

    if ACCELERATORS.fullmatch(name) and value_of("mixed_precision") == "fp16":
        return True
    if ARGUMENTS.fullmatch(name) and value_of("fp16") is True:
        return True
    if LIGHTNING_CLASSES.fullmatch(name) and value_of("precision") in LIGHTNING_PRECISIONS:
        return True
    if name == "torch.set_default_dtype":
        return bool(call.args) and module.names.of(call.args[0]) in DTYPES
    if name in ("torch.autocast", "torch.amp.autocast"):
        is_xla = getattr(argument(call, 0, "device_type"), "value", "") == "xla"
        dtype = argument(call, 1, "dtype")
        return is_xla and dtype is not None and module.names.of(dtype) in DTYPES
    return False
