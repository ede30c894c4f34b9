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
HALF_PRECISION = ("fp16", "fp16_full_eval")
DTYPES = ("torch.float16", "torch.half", "torch.float64", "torch.double")


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for call in module.calls:
            cause = _unsupported(module, call)
            if cause is not None:
                message = f"{quoted(module, cause)} asks for a precision that TPUs do not have"
                yield finding_at(RULE, module, cause, message, "Use bfloat16 (bf16).")


def _unsupported(module: Module, call: ast.Call) -> ast.keyword | ast.Call | None:
    """The option, or the call, that asks for a precision of GPUs."""
    name = module.names.of(call.func) or ""
    for keyword in call.keywords:
        option, value = keyword.arg, getattr(keyword.value, "value", None)
        if ACCELERATORS.fullmatch(name) and option == "mixed_precision" and value == "fp16":
            return keyword
        if ARGUMENTS.fullmatch(name) and option in HALF_PRECISION and value is True:
            return keyword
        is_lightning = LIGHTNING_CLASSES.fullmatch(name) and option == "precision"
        if is_lightning and value in LIGHTNING_PRECISIONS:
            return keyword
    return call if _is_unsupported_dtype(module, call, name) else None


def _is_unsupported_dtype(module: Module, call: ast.Call, name: str) -> bool:
    if name == "torch.set_default_dtype":
        return bool(call.args) and module.names.of(call.args[0]) in DTYPES
    if name in ("torch.autocast", "torch.amp.autocast"):
        is_xla = getattr(argument(call, 0, "device_type"), "value", "") == "xla"
        dtype = argument(call, 1, "dtype")
        return is_xla and dtype is not None and module.names.of(dtype) in DTYPES
    return False
