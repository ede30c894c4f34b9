"""Which framework a script uses, and whether the stack's runtime is one for it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from pathlib import Path

from tpuctl.catalog import base_runtime
from tpuctl.errors import Diagnostic
from tpuctl.model.stack import Stack

__all__ = ["framework_of", "runtime_warning"]

# By top-level module. PyTorch alone is not among them: it may only load data.
_FRAMEWORKS: Mapping[str, str] = {
    **dict.fromkeys(("equinox", "flax", "haiku", "jax", "jaxlib", "optax", "orbax"), "JAX"),
    "torch_xla": "PyTorch/XLA",
    **dict.fromkeys(("keras", "tensorflow", "tf_keras"), "TensorFlow"),
}


def framework_of(source: str) -> str:
    """`JAX`, `PyTorch/XLA`, `TensorFlow`, or "" if its imports do not tell.

    A script of several frameworks is one of TensorFlow's, which its images can run.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of the script
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    modules = [
        *(
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        ),
        *(
            node.module or ""
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and not node.level
        ),
    ]
    used = {_FRAMEWORKS.get(module.partition(".")[0], "") for module in modules} - {""}
    return "TensorFlow" if "TensorFlow" in used else min(used, default="")


def runtime_warning(stack: Stack, script: Path) -> Diagnostic | None:
    """A warning if the script's framework is not TensorFlow, and the stack's runtime is."""
    if stack.runtime.tensorflow is None or script.suffix != ".py":
        return None
    framework = framework_of(script.read_text("utf-8", "replace"))
    if framework in ("", "TensorFlow"):
        return None
    base = base_runtime(stack.accelerator)
    section = f"kind: vm, runtime: {base.version if base else 'RUNTIME'}"
    if not stack.is_node:
        section = section.removeprefix("kind: vm, ")
    workers = stack.job_workers()
    only = (
        f", so the job runs on worker {workers[0]} of {stack.worker_count} only"
        if len(workers) < stack.worker_count and stack.file.job.workers == "auto"
        else ""
    )
    return Diagnostic(
        "Runtime is for another framework",
        f"{script.name} uses {framework}, and runtime {stack.runtime.version} is for TensorFlow"
        f"{only}",
        f"Set the runtime for {framework} in the stack file, and create the TPU again:\n"
        f"    tpu: {{{section}}}\n    tpuctl down\n    tpuctl up",
        where="tpu.runtime",
    )
