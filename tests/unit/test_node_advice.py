"""The notice that TPU nodes are closed: before a request, and after a denied one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.catalog import accelerator_type
from tpuctl.model.stack.stack import load_stack
from tpuctl.resources.tpu.tpu_node_v1 import closed_api_warning, vm_runtime


@pytest.mark.parametrize(
    ("type_name", "tensorflow", "expected"),
    [
        ("v3-8", "2.12.0", "tpu-vm-tf-2.12.0"),
        ("v3-8", "2.12.1", "tpu-vm-tf-2.12.1"),
        ("v3-32", "2.12.0", "tpu-vm-tf-2.12.0-pod"),
        ("v2-8", "2.11.1", "tpu-vm-tf-2.12.0"),  # the oldest of TPU VMs
        ("v2-8", "2.17.0", "tpu-vm-tf-2.17.0-pjrt"),
        ("v2-8", "2.19.0", "tpu-vm-tf-2.18.0-pjrt-v5p-and-below"),  # there is no newer one
        ("v3-8", None, "tpu-ubuntu2204-base"),  # PyTorch
    ],
)
def test_suggested_runtime(type_name: str, tensorflow: str | None, expected: str) -> None:
    accelerator = accelerator_type(type_name)
    assert accelerator is not None
    runtime = vm_runtime(accelerator, tensorflow)
    assert runtime is not None
    assert runtime.version == expected


def test_suggested_change_works_in_stack_file(tmp_path: Path) -> None:
    path = tmp_path / "tpuctl.yaml"
    text = (
        "stack: bert\nproject: {id: my-project}\n"
        "tpu: {kind: node, type: v3-8, runtime: 2.9.3, zones: [europe-west4-a]}\n"
    )
    path.write_text(text, "utf-8")
    notice = closed_api_warning(load_stack(path))
    assert "bert-tpu" in notice.detail
    change = notice.hint.splitlines()[-1].strip().removeprefix("tpu: {").removesuffix("}")
    path.write_text(text.replace("kind: node", change).replace("runtime: 2.9.3, ", ""), "utf-8")
    changed = load_stack(path)
    assert not changed.is_node
    assert changed.runtime.version == "tpu-vm-tf-2.12.0"
