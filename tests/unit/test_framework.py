"""The framework of a job, the runtime and the workers that it decides, and other runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.cloud.tpu_v2.types import Node

from tpuctl.errors import InvalidStack
from tpuctl.model.scripts.framework import Framework, FrameworkChoice, framework_in
from tpuctl.model.stack.stack import Stack, load_stack
from tpuctl.preflight.check import check_project, default_target
from tpuctl.preflight.script_framework import runtime_warning
from tpuctl.resources.tpu.tpu_node_spec import node_differences

JAX = "import jax\n\njax.distributed.initialize()\n"
V5E = "type: v5litepod-16, zones: [us-west4-a]"
BASE, TENSORFLOW = "v2-alpha-tpuv5-lite", "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6"
OLDER = "tpu-vm-tf-2.16.1-pod-pjrt"


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        (JAX, "jax"),
        ("from flax import nnx\n", "jax"),
        ("def main():\n    import jax.numpy as jnp\n", "jax"),
        ("import os, optax\n", "jax"),
        ("import torch\nimport torch_xla.core.xla_model as xm\n", "torch"),
        ("import torch\nimport torch_tpu\n", "torch"),
        ("import tensorflow as tf\n", "tensorflow"),
        ("import keras\n", "tensorflow"),
        ("import jax\nimport tensorflow as tf  # tf.data\n", "tensorflow"),
        ("import flax\nimport tensorflow as tf  # tf.data\n", "jax"),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras\n", "jax"),
        ("import os\nos.environ.setdefault('KERAS_BACKEND', 'jax')\nimport keras\n", "jax"),
        ("import os\nos.environ.update(KERAS_BACKEND='jax')\nimport keras, jax\n", "jax"),
        ("import os\nos.environ['KERAS_BACKEND'] = 'tensorflow'\nimport keras\n", "tensorflow"),
        ("# os.environ['KERAS_BACKEND'] = 'jax'\nimport keras\n", "tensorflow"),
        ("import torch\n", None),  # to load data
        ("from .jax import step\n", None),
        ("import jaxtyping\n", None),
        ("'import jax'\n", None),
        ("import jax as\n", None),
    ],
)
def test_framework_by_imports(tmp_path: Path, source: str, framework: str | None) -> None:
    assert imported_framework(tmp_path, source) == framework


def imported_framework(folder: Path, source: str) -> Framework | None:
    script = folder / "train.py"
    script.write_text(source)
    return check_project(script, default_target()).framework


@pytest.mark.parametrize(
    ("files", "framework", "because"),
    [
        ({"requirements.txt": "jax[tpu]\n"}, "jax", "requirements.txt"),
        ({"requirements.txt": "optax\nflax>=0.10\n"}, "jax", "requirements.txt"),
        ({"requirements.txt": 'jax[tpu]; sys_platform == "linux"'}, "jax", "requirements.txt"),
        (
            {"requirements.txt": "torch==2.9.0\ntorch_xla[tpu]==2.9.0\n"},
            "torch",
            "requirements.txt",
        ),
        ({"requirements.txt": "torch==2.13.0\ntorch_tpu==0.2.0\n"}, "torch", "requirements.txt"),
        ({"requirements.txt": "jax\ntorch-tpu\n"}, "torch", "requirements.txt"),  # Pallas kernels
        ({"requirements.txt": "tensorflow-tpu==2.19.1\n"}, "tensorflow", "requirements.txt"),
        # TensorFlow loads JAX's data, unless JAX has no support for TPUs.
        ({"requirements.txt": "jax[tpu]\ntensorflow\n"}, "jax", "requirements.txt"),
        ({"requirements.txt": "jax\ntensorflow\n"}, "tensorflow", "requirements.txt"),
        ({"requirements.txt": "flax\ntensorflow==2.11.1\n"}, "jax", "requirements.txt"),
        ({"requirements.txt": "jax\ntensorflow-cpu\n"}, "jax", "requirements.txt"),
        (
            {"requirements.txt": "optax\ntensorflow-tpu==2.19.1\n"},
            "tensorflow",
            "requirements.txt",
        ),
        (
            {"train.py": "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras\n"},
            "jax",
            "train.py",
        ),
        (
            {"pyproject.toml": '[project]\ndependencies = ["jax[tpu]>=0.4"]\n'},
            "jax",
            "pyproject.toml",
        ),
        ({"train/requirements.txt": "jax[tpu]\n"}, "jax", "train/requirements.txt"),
        ({"train.py": JAX}, "jax", "train.py"),
        ({"train/main.py": "import jax\n", "train/data.py": "import os\n"}, "jax", "train/main.py"),
        # Requirements decide, since a script may import another framework in passing.
        ({"requirements.txt": "jax[tpu]\n", "a.py": "import keras\n"}, "jax", "requirements.txt"),
        # Which job follows is unknown.
        ({"a/requirements.txt": "jax[tpu]\n", "b/requirements.txt": "keras\n"}, None, ""),
        ({"a.py": JAX, "b.py": "import tensorflow\n"}, None, ""),
        ({"requirements.txt": "torch\n", "a.py": "import torch\n"}, None, ""),
        ({"a/b/train.py": JAX}, None, ""),
        ({".venv/train.py": JAX}, None, ""),
        ({"env/pyvenv.cfg": "", "env/train.py": JAX}, None, ""),
        ({"requirements.txt": "\0\xff", "train.py": "\0"}, None, ""),
        ({}, None, ""),
    ],
)
def test_framework_of_folder(
    tmp_path: Path, files: dict[str, str], framework: str | None, because: str
) -> None:
    write(tmp_path, files)
    choice = framework_in(tmp_path)
    assert (choice and choice.framework) == framework
    assert choice is None or choice.because == because


def test_requirements_file_of_another_name(tmp_path: Path) -> None:
    write(tmp_path, {"requirements-tpu.txt": "jax[tpu]\n", "requirements.txt": "tensorflow\n"})
    choice = framework_in(tmp_path, "requirements-tpu.txt")
    assert choice is not None and choice.framework == "jax"
    assert load(tmp_path, V5E, "{requirements: requirements-tpu.txt}").runtime.version == BASE


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "latin-1")


def load(folder: Path, tpu: str, job: str = "{}") -> Stack:
    file = folder / "tpuctl.yaml"
    file.write_text(f"stack: demo\nproject: {{id: my-project}}\ntpu: {{{tpu}}}\njob: {job}\n")
    return load_stack(file)


@pytest.mark.parametrize(
    ("tpu", "job", "files", "runtime", "workers"),
    [
        (V5E, "{}", {}, TENSORFLOW, 1),
        (V5E, "{}", {"train.py": JAX}, BASE, 4),
        (V5E, "{framework: jax}", {}, BASE, 4),
        (V5E, "{framework: torch}", {}, BASE, 4),
        (V5E, "{framework: other}", {}, BASE, 4),
        (
            V5E,
            "{framework: tensorflow}",
            {"train.py": JAX},
            TENSORFLOW,
            1,
        ),
        ("type: v3-8, zones: [europe-west4-a]", "{framework: jax}", {}, "tpu-ubuntu2204-base", 1),
        ("type: v6e-8, zones: [us-east5-b]", "{framework: jax}", {}, "v2-alpha-tpuv6e", 1),
        # The stack file's runtime counts, and JAX still runs on all workers.
        (
            f"{V5E}, runtime: {OLDER}",
            "{framework: jax}",
            {},
            OLDER,
            4,
        ),
        (
            f"{V5E}, runtime: {OLDER}",
            "{}",
            {"train.py": JAX},
            OLDER,
            1,
        ),
        (V5E, "{framework: jax, workers: [2]}", {}, BASE, 1),
        (
            "kind: node, type: v3-8, zones: [europe-west4-a]",
            "{framework: torch}",
            {},
            "pytorch-2.0",
            1,
        ),
    ],
)
def test_framework_decides_runtime_and_workers(
    tmp_path: Path, tpu: str, job: str, files: dict[str, str], runtime: str, workers: int
) -> None:
    write(tmp_path, files)
    stack = load(tmp_path, tpu, job)
    assert stack.runtime.version == runtime
    assert len(stack.job_workers()) == workers


def test_script_decides_if_folder_does_not(tmp_path: Path) -> None:
    stack = load(tmp_path, V5E)
    assert stack.runtime.tensorflow is not None
    assert stack.for_framework(FrameworkChoice("jax", "train.py")).runtime.version == BASE
    assert stack.for_framework(None).runtime == stack.runtime
    explicit = load(tmp_path, V5E, "{framework: tensorflow}")
    assert explicit.for_framework(FrameworkChoice("jax", "train.py")) == explicit


@pytest.mark.parametrize(
    ("tpu", "job", "files", "differs"),
    [
        # `auto` decides for new nodes only: neither a new file nor a newer table changes a node.
        (V5E, "{}", {}, False),
        (V5E, "{}", {"train.py": "import tensorflow\n"}, False),
        (V5E, "{framework: tensorflow}", {}, True),
        (f"{V5E}, runtime: {OLDER}", "{}", {}, True),
        (V5E, "{framework: jax}", {}, False),
    ],
)
def test_node_with_base_runtime(
    tmp_path: Path, tpu: str, job: str, files: dict[str, str], differs: bool
) -> None:
    write(tmp_path, files)
    node = Node(accelerator_type="v5litepod-16", runtime_version=BASE)
    stack = load(tmp_path, tpu, job)
    differences = list(node_differences(stack, node))
    assert [field for field, *_ in differences] == (["runtime"] if differs else [])
    if not differs:
        assert len(stack.on_runtime(BASE).job_workers()) == 4


def test_node_with_runtime_of_another_type_differs(tmp_path: Path) -> None:
    node = Node(accelerator_type="v5litepod-16", runtime_version="v2-alpha-tpuv6e")
    assert [field for field, *_ in node_differences(load(tmp_path, V5E), node)] == ["runtime"]
    with pytest.raises(InvalidStack, match="JAX does not support TPU nodes"):
        load(tmp_path, "kind: node, type: v3-8, zones: [europe-west4-a]", "{framework: jax}")


def warning(folder: Path, tpu: str, source: str = JAX, job: str = "{}") -> tuple[str, str] | None:
    """The detail and the hint."""
    stack = load(folder, tpu, job)
    framework = imported_framework(folder, source)
    if framework is not None:
        stack = stack.for_framework(FrameworkChoice(framework, "train.py"))
    diagnostic = runtime_warning(stack, folder / "train.py")
    return None if diagnostic is None else (diagnostic.detail, diagnostic.hint)


def test_runtime_of_another_framework_is_reported(tmp_path: Path) -> None:
    reported = warning(tmp_path, f"{V5E}, runtime: {OLDER}")
    assert reported is not None
    detail, hint = reported
    assert detail == f"train.py uses JAX, and runtime {OLDER} is for TensorFlow"
    assert "    tpu: {runtime: v2-alpha-tpuv5-lite}" in hint
    assert "    tpuctl up" in hint
    # A TPU node needs another kind.
    reported = warning(tmp_path, "kind: node, type: v3-8, zones: [europe-west4-a]")
    assert reported is not None
    assert "    tpu: {kind: vm, runtime: tpu-ubuntu2204-base}" in reported[1]


def test_existing_node_of_another_framework_is_reported(tmp_path: Path) -> None:
    """It was created before the script told."""
    stack = load(tmp_path, V5E).for_framework(FrameworkChoice("jax", "train.py"))
    stack = stack.on_runtime(OLDER)
    diagnostic = runtime_warning(stack, tmp_path / "train.py")
    assert diagnostic is not None
    assert "    job: {framework: jax}" in diagnostic.hint
    assert len(stack.job_workers()) == 4


@pytest.mark.parametrize(
    ("tpu", "source"),
    [
        (f"{V5E}, runtime: {BASE}", JAX),
        (V5E, JAX),
        (V5E, "import tensorflow\n"),
        (V5E, "print(1)\n"),
        (f"{V5E}, runtime: {OLDER}", "import tensorflow\n"),
    ],
)
def test_fitting_runtime_is_not_reported(tmp_path: Path, tpu: str, source: str) -> None:
    assert warning(tmp_path, tpu, source) is None
