"""`check_project` pauses garbage collection, and imports the rules that apply to the script."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tpuctl.model.stack.stack import read_stack
from tpuctl.preflight import check
from tpuctl.preflight.check import check_project, default_target, target_of


@pytest.fixture
def enabled_in_rules(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether garbage collection was enabled when each rule ran."""
    enabled: list[bool] = []

    def find(*_: Any) -> Iterator[Any]:
        enabled.append(gc.isenabled())
        return iter(())

    monkeypatch.setattr(check, "FINDERS", {"TPU001": find, "TPU002": find})
    monkeypatch.setattr(check, "codes_for", lambda project: ["TPU001", "TPU002"])
    return enabled


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_collection_is_paused(
    tmp_path: Path, enabled_in_rules: list[bool], was_enabled: bool
) -> None:
    script = tmp_path / "job.py"
    script.write_text("print(1)\n")
    if not was_enabled:
        gc.disable()
    try:
        check_project(script, default_target())
        after = gc.isenabled()
    finally:
        gc.enable()
    assert enabled_in_rules == [False, False]
    assert after == was_enabled


@pytest.mark.parametrize(
    ("source", "packages"),
    [
        ("import json", set()),
        ("from keras import layers", {"tensorflow_steps"}),
        ("import tensorflow", {"tensorflow_steps"}),
        ("import jax", {"jax"}),
        ("import torch_xla", {"torch"}),
    ],
)
def test_rules_about_frameworks_are_imported_if_used(
    tmp_path: Path, source: str, packages: set[str]
) -> None:
    script = tmp_path / "job.py"
    script.write_text(f"{source}\n")
    program = """
import sys
from pathlib import Path
from tpuctl.preflight.check import check_project, default_target

check_project(Path(sys.argv[1]), default_target())
print(*(name.split(".")[3] for name in sys.modules if ".preflight.rules." in name))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, script], capture_output=True, text=True, check=True
    )
    always = {"_common", "job", "tensorflow_host"}
    assert {*done.stdout.split()} == always | packages


@pytest.mark.parametrize(
    ("tpu", "replicas", "workers", "python"),
    [
        ("type: v5p-16, api: compute, zones: [us-east5-a]", 8, 2, "3.10"),
        ("type: v6e-8, api: compute, zones: [us-east5-b]", 8, 1, "3.10"),
        ("type: tpu7x-8, zones: [us-central1-c]", 8, 1, "3.12"),  # two devices on each of 4 chips
    ],
)
def test_target_of_stack_on_compute_engine(
    tmp_path: Path, tpu: str, replicas: int, workers: int, python: str
) -> None:
    file = tmp_path / "tpuctl.yaml"
    job = "job: {requirements: 'pyproject.toml[tpu]'}"
    file.write_text(f"stack: s\nproject: {{id: my-project}}\ntpu: {{{tpu}}}\n{job}\n", "utf-8")
    target = target_of(read_stack(file))
    assert (target.replicas, target.workers, target.python) == (replicas, workers, python)
    assert target.tensorflow is None
    assert target.image.startswith("ubuntu-os-accelerator-images/")
    assert (target.requirements, target.installs_more) == ("pyproject.toml", True)
