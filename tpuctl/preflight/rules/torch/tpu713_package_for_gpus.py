"""TPU713 package-for-gpus."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU713",
    name="package-for-gpus",
    severity=Severity.risk,
    summary="Script for PyTorch on a TPU uses a package or an option that needs a GPU",
    rationale=(
        "Packages such as bitsandbytes, flash-attn, Apex, and Transformer Engine contain kernels "
        "for CUDA. Without a GPU they cannot be installed, or raise an error when they are used. "
        "So do the options of other packages that use them, and fused optimizers. Imports in "
        "`try` or under a condition are not reported."
    ),
    bad="""\
import bitsandbytes as bnb
import torch
import torch_xla

model = torch.nn.Linear(8, 1).to(torch_xla.device())
optimizer = bnb.optim.Adam8bit(model.parameters())
""",
    good="""\
import torch
import torch_xla

model = torch.nn.Linear(8, 1).to(torch_xla.device())
optimizer = torch.optim.Adam(model.parameters())
""",
)

PACKAGES = {
    *("apex", "bitsandbytes", "cupy", "deepspeed", "flash_attn", "pynvml", "triton"),
    *("transformer_engine", "unsloth", "xformers"),
}
# Options of libraries, and the values with which they need a GPU.
OPTIONS: dict[str, re.Pattern[str]] = {
    "load_in_8bit": re.compile("True"),
    "load_in_4bit": re.compile("True"),
    "fused": re.compile("True"),
    "attn_implementation": re.compile("flash_attention_[23]"),
    "optim": re.compile(r".*(?:8bit|4bit|bnb|apex).*|paged_.*"),
    "strategy": re.compile(r"deepspeed.*"),
}
LIBRARIES = ("transformers.", "trl.", "lightning.", "pytorch_lightning.", "torch.optim.")


def find(project: Project, target: Target) -> Iterator[Finding]:
    modules = {name.partition(".")[0] for name in project.modules}
    seen: set[str] = set()
    for module in project:
        for node in module.of_types(ast.Import, ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            packages = {name.partition(".")[0] for name in names} & PACKAGES - modules - seen
            if getattr(node, "level", 0) or is_in_branch(module, node, None):
                continue
            for package in sorted(packages):
                seen.add(package)
                message = f"{package} needs a GPU, which a TPU VM lacks"
                yield finding_at(RULE, module, node, message, "Use PyTorch's own, or torch_xla's.")
        for call in module.calls:
            if not (module.names.of(call.func) or "").startswith(LIBRARIES):
                continue
            for keyword in call.keywords:
                pattern = OPTIONS.get(keyword.arg or "")
                value = str(getattr(keyword.value, "value", ""))
                if pattern is not None and pattern.fullmatch(value):
                    message = f"`{keyword.arg}={value}` needs a GPU, which a TPU VM lacks"
                    yield finding_at(RULE, module, keyword, message, "Leave it out.")
