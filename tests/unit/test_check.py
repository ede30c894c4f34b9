"""`check_project` pauses garbage collection, and imports the rules that apply to the script."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.errors import Refused
from tpuctl.model.stack.stack import Stack, read_stack
from tpuctl.preflight import check
from tpuctl.preflight.check import (
    check_path,
    check_project,
    default_target,
    describe_target,
    program_target,
    target_of,
)
from tpuctl.preflight.findings import Target
from tpuctl.preflight.submit_gate import runnable

ON_HOST = {"tensorflow_host", "tensorflow_input"}  # of programs that may use TensorFlow


@pytest.fixture
def enabled_in_rules(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether garbage could be collected when each rule ran."""
    enabled: list[bool] = []

    def find(*_: Any) -> Iterator[Any]:
        enabled.append(gc.isenabled() and gc.get_threshold()[0] > 0)
        return iter(())

    monkeypatch.setattr(check, "FINDERS", {"TPU001": find, "TPU002": find})
    monkeypatch.setattr(check, "codes_for", lambda project, target: ["TPU001", "TPU002"])
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


@pytest.mark.parametrize(("requirement", "count"), [("torch_xla", 1), ("torch-tpu", 0)])
def test_rules_about_torch_xla_are_not_for_torch_tpu(
    tmp_path: Path, requirement: str, count: int
) -> None:
    """`import torch` loads torch-tpu: scripts need not name it."""
    source = "import torch\n\nbatch = torch.ones(4).cuda()\n"
    checker = RuleChecker(tmp_path, "TPU701")
    files = {"requirements.txt": f"{requirement}\n"}
    assert len(checker.findings(source, Target(framework="torch"), files)) == count


@pytest.mark.parametrize(
    ("source", "packages"),
    [
        ("import json", ON_HOST),
        ("from keras import layers", {"tensorflow_steps"} | ON_HOST),
        ("import tensorflow", {"tensorflow_steps"} | ON_HOST),
        ("import jax", {"jax", "jax_host", "jax_processes"}),
        ("import torch_xla", {"torch", "torch_processes"}),
        ("import torch_tpu", set()),
    ],
)
def test_rules_about_frameworks_are_imported_if_used(
    tmp_path: Path, source: str, packages: set[str]
) -> None:
    script = tmp_path / "job.py"
    script.write_text(f"{source}\n")
    program = """
import sys
from dataclasses import is_dataclass
from pathlib import Path
from tpuctl.preflight.check import check_project, default_target

check_project(Path(sys.argv[1]), default_target())
print(*(name.split(".")[3] for name in sys.modules if ".preflight.rules." in name))
assert "packaging" not in sys.modules, "no requirement has a version to compare"
assert "tomllib" not in sys.modules, "no file has TOML"
modules = [module for name, module in sys.modules.items() if name.startswith("tpuctl.")]
classes = {part for module in modules for part in vars(module).values() if isinstance(part, type)}
count = sum(map(is_dataclass, classes))
assert count <= 20, f"{count} dataclasses, of which each takes as long as five named tuples"
"""
    done = subprocess.run(
        [sys.executable, "-c", program, script], capture_output=True, text=True, check=True
    )
    assert {*done.stdout.split()} == {"_common", "job"} | packages


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
    assert (target.requirements, target.installs_more) == ("pyproject.toml[tpu]", True)


STACK = """
stack: s
project: {id: my-project}
tpu: {type: v5litepod-4, zones: [us-west4-a]}
"""
PYPROJECT = """[project]
name = "a"
requires-python = "REQUIRED"
dependencies = ["jax[tpu]>=0.8"]
"""
SOURCE = "from itertools import batched\n\nimport jax\n\nprint(jax.devices(), batched)\n"


def folder_with(tmp_path: Path, setting: str = "", **files: str) -> Stack:
    """The stack of a folder with a script and these files; `setting` is job.python."""
    job = f"job: {{python: '{setting}'}}\n" if setting else ""
    (tmp_path / "tpuctl.yaml").write_text(STACK + job, "utf-8")
    (tmp_path / "train.py").write_text(SOURCE, "utf-8")
    for name, text in files.items():
        (tmp_path / NAMES[name]).write_text(text, "utf-8")
    return read_stack(tmp_path / "tpuctl.yaml")


NAMES = {
    "project": "pyproject.toml",
    "lock": "uv.lock",
    "pinned": ".python-version",
    "script": "train.py",
}


@pytest.mark.parametrize(
    ("setting", "files", "pythons", "asked_by"),
    [
        ("", {}, (), ""),
        ("", {"project": PYPROJECT.replace("REQUIRED", ">=3.10")}, (), ""),
        (
            "",
            {"project": PYPROJECT.replace("REQUIRED", ">=3.12")},
            ("3.12", "3.13", "3.14", "3.15"),
            "requires-python, {}/pyproject.toml:3",
        ),
        (
            "",
            {"project": PYPROJECT.replace("REQUIRED", ">=3.12"), "pinned": "# here\n3.13\n"},
            ("3.13",),
            "{}/.python-version:2",
        ),
        (
            "",
            {
                "lock": 'version = 1\nrequires-python = "==3.12.*"\n[[package]]\nname = "a"\n',
                "project": PYPROJECT,
            },
            ("3.12",),
            "requires-python, {}/uv.lock:2",
        ),
        (
            "",
            {"script": '# /// script\n# requires-python = "<3.10"\n# ///\n', "pinned": "3.12"},
            ("3.8", "3.9"),
            "requires-python, {}/train.py:2",
        ),
        ("image", {"project": PYPROJECT.replace("REQUIRED", ">=3.12")}, (), ""),
        ("3.11.7", {"project": PYPROJECT.replace("REQUIRED", ">=3.12")}, ("3.11",), "job.python"),
        ("3.10", {"pinned": "3.12"}, (), ""),
        (">=3.11,<3.13", {}, ("3.11", "3.12"), "job.python"),
    ],
)
def test_python_of_the_target(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    files: dict[str, str],
    pythons: tuple[str, ...],
    asked_by: str,
) -> None:
    stack = folder_with(tmp_path, setting, **files)
    monkeypatch.chdir(tmp_path.parent)
    target = target_of(stack, tmp_path, tmp_path / "train.py")
    assert (target.pythons, target.asked_by) == (pythons, asked_by.format(tmp_path.name))
    assert target.brings_python == bool(pythons)
    oldest = next((minor for minor in pythons if int(minor[2:]) > 10), "3.9")
    assert target.python == (oldest if pythons else "3.10")


@pytest.mark.parametrize("version", ["3.7", "3.99", "==3.99.*", "<3.8", "3.12.77"])
def test_python_that_does_not_exist_is_refused(tmp_path: Path, version: str) -> None:
    stack = folder_with(tmp_path, pinned=f"\n{version}\n")
    with pytest.raises(Refused) as caught:
        target_of(stack, tmp_path)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.where == f"{tmp_path}/.python-version:2"
    assert version in diagnostic.detail


def test_own_python_of_the_job_decides(tmp_path: Path) -> None:
    """JAX and the standard library need a newer Python than the image's, which the project says."""
    project = PYPROJECT.replace("REQUIRED", ">=3.12")
    stack = folder_with(tmp_path, project=project)
    target = program_target(stack, runnable(str(tmp_path / "train.py")))
    assert check_path(tmp_path / "train.py", target).findings == ()
    name = describe_target(target, "v5litepod-4")
    assert name.startswith("a TPU VM v5litepod-4 with Python 3.12 of the job (requires-python, ")
    assert "TensorFlow" not in name

    stack = folder_with(tmp_path, "image", project=project)
    report = check_path(tmp_path / "train.py", partial(target_of, stack))
    errors = [(each.code, each.path.name, each.line) for each in report.errors]
    assert errors == [("TPU505", "pyproject.toml", 4), ("TPU507", "train.py", 1)]
    assert {each.hint.rpartition("\n    ")[2] for each in report.errors} == {
        "job: {python: '3.12'}"
    }


def test_each_script_of_a_folder_is_checked_for_the_python_it_asks_for(tmp_path: Path) -> None:
    stack = folder_with(tmp_path)
    source = 'import tomllib\n\nif __name__ == "__main__":\n    print(tomllib)\n'
    metadata = '# /// script\n# requires-python = ">=3.11"\n# ///\n'
    (tmp_path / "train.py").write_text(source, "utf-8")
    (tmp_path / "prepare.py").write_text(metadata + source, "utf-8")
    findings = check_path(tmp_path, partial(target_of, stack)).findings
    assert [each.path.name for each in findings] == ["train.py"]
