"""Which framework a script uses, and whether the stack's runtime is one for it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.catalog import base_runtime
from tpuctl.errors import Diagnostic
from tpuctl.model.scripts.framework import TITLES, Framework, framework_of_modules
from tpuctl.preflight.analysis.program.source import Module, Project

if TYPE_CHECKING:
    from tpuctl.model.stack.stack import Stack


def framework_of(project: Project) -> Framework | None:
    """The framework of a script, if its imports tell."""
    return framework_of_modules(imported_modules(project.script), project.keras_backend)


def imported_modules(script: Module) -> set[str]:
    """The top-level modules that a script imports, anywhere in it."""
    names = [alias.name for node in script.of_types(ast.Import) for alias in node.names]
    names += [node.module or "" for node in script.of_types(ast.ImportFrom) if not node.level]
    return {name.partition(".")[0] for name in names}


def runtime_warning(stack: Stack, script: Path) -> Diagnostic | None:
    """A warning if the framework of the stack's jobs is not TensorFlow, and its runtime is."""
    if stack.runtime.tensorflow is None or stack.framework is None or script.suffix != ".py":
        return None
    framework = stack.framework.framework
    if framework in ("tensorflow", "other"):
        return None
    title = TITLES[framework]
    base = base_runtime(stack.accelerator)
    version = base.version if base is not None else "RUNTIME"
    if stack.is_node:
        change = f"tpu: {{kind: vm, runtime: {version}}}"
    elif stack.file.tpu.runtime != "auto":
        change = f"tpu: {{runtime: {version}}}"
    else:
        change = f"job: {{framework: {framework}}}"
    return Diagnostic(
        "Runtime is for another framework",
        f"{script.name} uses {title}, and runtime {stack.runtime.version} is for TensorFlow",
        f"Set the runtime for {title} in the stack file, and create the TPU again:\n"
        f"    {change}\n    tpuctl down\n    tpuctl up",
        where="tpu.runtime",
    )
