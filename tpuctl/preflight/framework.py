"""Which framework a script uses, and whether the stack's runtime is one for it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.catalog import base_runtime
from tpuctl.errors import Diagnostic
from tpuctl.preflight.analysis.source import Module

if TYPE_CHECKING:
    from tpuctl.model.stack import Stack

__all__ = ["framework_of", "runtime_warning"]

# By top-level module. PyTorch alone is not among them: it may only load data.
_FRAMEWORKS: Mapping[str, str] = {
    **dict.fromkeys(("equinox", "flax", "haiku", "jax", "jaxlib", "optax", "orbax"), "JAX"),
    "torch_xla": "PyTorch/XLA",
    **dict.fromkeys(("keras", "tensorflow", "tf_keras"), "TensorFlow"),
}


def framework_of(script: Module) -> str:
    """`JAX`, `PyTorch/XLA`, `TensorFlow`, or "" if its imports do not tell.

    A script of several frameworks is one of TensorFlow's, which its images can run.
    """
    names = [alias.name for node in script.of_types(ast.Import) for alias in node.names]
    names += [node.module for node in script.of_types(ast.ImportFrom) if not node.level]
    used = {_FRAMEWORKS.get(name.partition(".")[0], "") for name in names} - {""}
    return "TensorFlow" if "TensorFlow" in used else min(used, default="")


def runtime_warning(stack: Stack, script: Path, framework: str) -> Diagnostic | None:
    """A warning if the script's framework is not TensorFlow, and the stack's runtime is."""
    if stack.runtime.tensorflow is None or script.suffix != ".py":
        return None
    if framework in ("", "TensorFlow"):
        return None
    base = base_runtime(stack.accelerator)
    kind = "kind: vm, " if stack.is_node else ""
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
        f"    tpu: {{{kind}runtime: {base.version if base else 'RUNTIME'}}}\n"
        "    tpuctl down\n    tpuctl up",
        where="tpu.runtime",
    )
