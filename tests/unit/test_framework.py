"""Scripts of other frameworks than that of the stack's runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.model.stack import load_stack
from tpuctl.preflight.check import check_project, default_target
from tpuctl.preflight.framework import runtime_warning

JAX = "import jax\n\njax.distributed.initialize()\n"


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        (JAX, "JAX"),
        ("from flax import nnx\n", "JAX"),
        ("def main():\n    import jax.numpy as jnp\n", "JAX"),
        ("import os, optax\n", "JAX"),
        ("import torch\nimport torch_xla.core.xla_model as xm\n", "PyTorch/XLA"),
        ("import tensorflow as tf\n", "TensorFlow"),
        ("import keras\n", "TensorFlow"),
        ("import jax\nimport tensorflow as tf  # tf.data\n", "TensorFlow"),
        ("import torch\n", ""),  # to load data
        ("from .jax import step\n", ""),
        ("import jaxtyping\n", ""),
        ("'import jax'\n", ""),
        ("import jax as\n", ""),
    ],
)
def test_framework_by_imports(tmp_path: Path, source: str, framework: str) -> None:
    assert framework_of(tmp_path, source) == framework


def framework_of(folder: Path, source: str) -> str:
    script = folder / "train.py"
    script.write_text(source)
    return check_project(script, default_target()).framework


def warning(folder: Path, tpu: str, source: str = JAX, job: str = "{}") -> tuple[str, str] | None:
    """The detail and the hint."""
    file = folder / "tpuctl.yaml"
    file.write_text(f"stack: demo\nproject: {{id: my-project}}\ntpu: {{{tpu}}}\njob: {job}\n")
    framework = framework_of(folder, source)
    diagnostic = runtime_warning(load_stack(file), folder / "train.py", framework)
    return None if diagnostic is None else (diagnostic.detail, diagnostic.hint)


def test_runtime_of_another_framework_is_reported(tmp_path: Path) -> None:
    reported = warning(tmp_path, "type: v5litepod-4, zones: [us-west4-a]")
    assert reported is not None
    detail, hint = reported
    assert "train.py uses JAX" in detail
    assert "is for TensorFlow" in detail
    assert "worker" not in detail
    assert "    tpu: {runtime: v2-alpha-tpuv5-lite}" in hint
    assert "    tpuctl up" in hint


def test_script_of_one_worker_of_a_slice_is_reported(tmp_path: Path) -> None:
    """TensorFlow drives a slice from worker 0."""
    tpu = "type: v5litepod-16, zones: [us-west4-a]"
    reported = warning(tmp_path, tpu)
    assert reported is not None
    assert reported[0].endswith("so the job runs on worker 0 of 4 only")
    reported = warning(tmp_path, tpu, job="{workers: all}")
    assert reported is not None
    assert reported[0].endswith("is for TensorFlow")


def test_tpu_node_needs_another_kind(tmp_path: Path) -> None:
    reported = warning(tmp_path, "kind: node, type: v3-8, zones: [europe-west4-a]")
    assert reported is not None
    assert "    tpu: {kind: vm, runtime: tpu-ubuntu2204-base}" in reported[1]


@pytest.mark.parametrize(
    ("tpu", "source"),
    [
        ("type: v5litepod-4, runtime: v2-alpha-tpuv5-lite, zones: [us-west4-a]", JAX),
        ("type: v5litepod-4, zones: [us-west4-a]", "import tensorflow\n"),
        ("type: v5litepod-4, zones: [us-west4-a]", "print(1)\n"),
    ],
)
def test_fitting_runtime_is_not_reported(tmp_path: Path, tpu: str, source: str) -> None:
    assert warning(tmp_path, tpu, source) is None
