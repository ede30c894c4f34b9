"""What a script is checked for, and what is looked at of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.catalog import runtimes
from tpuctl.preflight.check import check_folder, check_project
from tpuctl.preflight.findings import Remark, Report, Target
from tpuctl.preflight.script import other_interpreter

if TYPE_CHECKING:
    from tpuctl.model.stack import Stack
    from tpuctl.preflight.command import Runnable

__all__ = ["check_path", "check_wanted", "described", "target_of", "usual_target"]


def target_of(stack: Stack) -> Target:
    """What a stack's jobs run on."""
    return Target(stack.file.tpu.kind, stack.runtime.tensorflow, stack.accelerator.devices)


def usual_target() -> Target:
    """Where nobody says: a TPU VM with the newest TensorFlow that there is a runtime of."""
    return Target("vm", next((one.tensorflow for one in runtimes() if one.tensorflow), None))


def described(target: Target, name: str = "") -> str:
    """A target in words; `name` is the TPU's type."""
    kind = "TPU node" if target.kind == "node" else "TPU VM"
    parts = [f"a {kind}", *([name] if name else [])]
    with_ = f" with TensorFlow {target.tensorflow}" if target.tensorflow else ""
    return " ".join(parts) + with_


def check_path(path: Path, target: Target) -> Report:
    """Check a script with what it imports of its folder, or all files of Python below a folder."""
    if path.is_dir():
        return check_folder(path, target)
    if other_interpreter(path):
        text = "not looked at: its first line says that it is no Python"
        return Report((), (path.absolute(),), remarks=(Remark(path.absolute(), 1, text),))
    return check_project(path, target)


def check_wanted(wanted: Runnable, target: Target) -> Report:
    """Check what a job is to run, as far as it is Python of the folder that is shipped."""
    if wanted.file is None or wanted.form == "shell":
        return Report((), ())
    module = wanted.program if wanted.form == "module" else ""
    return check_project(wanted.file, target, wanted.folder, module)
