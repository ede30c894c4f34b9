"""Versions of JAX, PyTorch/XLA and libtpu: what the rule says, and what an installer does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Finding, Target

# Requirements that an installer rejects, with the line that the rule reports and a part of the
# message; and the version of Python to resolve them for.
REJECTED = {
    "jax[tpu]==0.6.2\njaxlib==0.6.0": (2, "jaxlib==0.6.0 cannot be installed", "3.11"),
    "jax[tpu]==0.6.1\njaxlib==0.6.2": (2, "requires jaxlib 0.6.1", "3.11"),
    "jax[tpu]==0.8.3\njaxlib==0.8.2": (2, "requires jaxlib 0.8.3", "3.11"),
    "jax[tpu]==0.6.1\nlibtpu==0.0.17": (2, "jax[tpu]==0.6.1 needs libtpu==0.0.15.*", "3.11"),
    "jax[tpu]==0.6.1\ntorch_xla[tpu]==2.8.1": (2, "torch-xla[tpu]==2.8.1 cannot", "3.11"),
    "jax[tpu]==0.6.2\ntensorflow-tpu==2.19.1": (2, "tensorflow-tpu==2.19.1 cannot", "3.11"),
    "jax[tpu]==0.4.33": (1, "not on PyPI", "3.11"),
    "jax[tpu]==0.5.0": (1, "not on PyPI", "3.11"),
    "jax[tpu]==0.7.0": (1, "needs Python 3.11 or later", "3.10"),
    "jax[tpu]>=0.7": (1, "needs Python 3.11 or later", "3.10"),
}
# Requirements for which there is nothing to say.
ACCEPTED = {
    "jax[tpu]": "3.10",
    "jax[tpu]>=0.4.36": "3.10",
    "jax[tpu]==0.6.2\njaxlib==0.6.2\nflax\noptax": "3.10",
    "jax[tpu]==0.6.2\nlibtpu==0.0.17": "3.10",
    "jax[tpu]==0.5.2\njaxlib==0.5.1": "3.10",
    "jax[tpu]==0.5.2\nlibtpu": "3.10",
    "jax==0.5.2\njaxlib==0.5.1\nlibtpu==0.0.10": "3.10",
}


def findings(
    folder: Path, requirements: str, source: str = "", generation: str = ""
) -> list[Finding]:
    files = {"requirements.txt": requirements + "\n"}
    return RuleChecker(folder, "TPU505").findings(source, Target(generation=generation), files)


@pytest.mark.parametrize("requirements", REJECTED)
def test_conflict_is_reported(tmp_path: Path, requirements: str) -> None:
    line, text, _ = REJECTED[requirements]
    finding = next(each for each in findings(tmp_path, requirements) if text in each.message)
    assert (finding.path.name, finding.line) == ("requirements.txt", line)
    assert finding.severity == ("risk" if "Python" in text else "error")


@pytest.mark.parametrize("requirements", [*ACCEPTED, "torch==2.9.0\ntorch_xla[tpu]==2.9.0"])
def test_fitting_versions_are_not_reported(tmp_path: Path, requirements: str) -> None:
    assert findings(tmp_path, requirements) == []


@pytest.mark.soak
@pytest.mark.parametrize("requirements", [*REJECTED, *ACCEPTED])
def test_installer_agrees(requirements: str) -> None:
    is_rejected = requirements in REJECTED
    python = REJECTED[requirements][2] if is_rejected else ACCEPTED[requirements]
    resolve = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--python-version", python, "-"]
    done = subprocess.run(
        resolve, check=False, input=requirements, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == is_rejected, done.stderr
    assert not is_rejected or "No solution found" in done.stderr


@pytest.mark.parametrize(
    ("requirements", "reported"),
    [
        ("torch==2.8.0\ntorch_xla[tpu]==2.9.0", True),
        ("torch==2.9.1\ntorch_xla[tpu]==2.9.0", False),
        ("torch>=2.8\ntorch_xla[tpu]==2.9.0", False),  # may be the same
    ],
)
def test_torch_of_another_release(tmp_path: Path, requirements: str, reported: bool) -> None:
    """pip installs both; the import fails (pytorch/xla#8626, marin-community/marin#731)."""
    messages = [finding.message for finding in findings(tmp_path, requirements)]
    assert [("undefined symbol" in message) for message in messages] == [True] * reported


@pytest.mark.parametrize(
    ("requirements", "reported"),
    [
        ("jax==0.6.2", True),
        ("flax\noptax\njax", True),
        ("jax==0.6.2\nlibtpu==0.0.17", False),
        ("jax==0.6.2\ntorch_xla[tpu]==2.9.0", False),
        ("flax\noptax", False),  # which bring JAX, of whatever version
    ],
)
def test_jax_without_libtpu(tmp_path: Path, requirements: str, reported: bool) -> None:
    messages = [finding.message for finding in findings(tmp_path, requirements)]
    assert [("JAX uses the CPU" in message) for message in messages] == [True] * reported


def test_python_of_the_image_decides_about_jax(tmp_path: Path) -> None:
    checker = RuleChecker(tmp_path, "TPU505")
    files = {"requirements.txt": "jax[tpu]==0.10.2\n"}
    [finding] = checker.findings("", Target(python="3.10"), files)
    assert "the image has Python 3.10" in finding.message
    assert not checker.findings("", Target(generation="tpu7x", python="3.12"), files)


@pytest.mark.parametrize(
    ("requirements", "reported"),
    [
        ("torch==2.9.0\ntorch_xla==2.9.0", True),
        ("torch==2.9.0\ntorch_xla[tpu]==2.9.0", False),
        ("torch==2.9.0\ntorch_xla==2.9.0\nlibtpu==0.0.21", False),
    ],
)
def test_torch_without_libtpu_on_image_without_it(
    tmp_path: Path, requirements: str, reported: bool
) -> None:
    files = {"requirements.txt": requirements}
    checker = RuleChecker(tmp_path, "TPU505")
    findings = checker.findings("", Target(image="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"), files)
    assert [("installs no libtpu" in each.message) for each in findings] == [True] * reported


def test_nightly_libtpu_of_another_index(tmp_path: Path) -> None:
    assert findings(tmp_path, "--find-links https://example.com/libtpu\njax[tpu]==0.4.33") == []


def test_packages_installed_by_script(tmp_path: Path) -> None:
    source = "import os\nos.system('pip install torch==2.8.0 torch_xla==2.9.0')\n"
    (finding,) = findings(tmp_path, "numpy", source)
    assert (finding.path.name, finding.line) == ("train.py", 2)


@pytest.mark.parametrize(
    ("generation", "requirements", "message"),
    [
        ("v6e", "libtpu==0.0.1", "libtpu==0.0.1 cannot compile for v6e"),
        ("v6e", "libtpu==0.0.2", ""),
        ("v5e", "libtpu==0.0.1", ""),
        ("", "libtpu==0.0.1", ""),  # without a stack
        ("tpu7x", "jax[tpu]==0.6.2", "jax[tpu]==0.6.2 needs libtpu==0.0.17.*, which cannot"),
        ("tpu7x", "torch==2.9.0\ntorch_xla[tpu]==2.9.0", "needs libtpu==0.0.21, which cannot"),
        ("tpu7x", "jax[tpu]<0.7", "jax[tpu]<0.7 does not recognize the chips of tpu7x"),
        ("tpu7x", "jax[tpu]", ""),
        ("v6e", "jax==0.4.31\nlibtpu", "jax==0.4.31 does not recognize the chips of v6e"),
        ("v6e", "jax==0.4.33\nlibtpu", ""),
        ("v6e", "torch==2.4.0\ntorch_xla==2.4.0", "torch-xla==2.4.0 does not recognize"),
        ("v6e", "torch==2.5.0\ntorch_xla==2.5.0", ""),
    ],
)
def test_release_older_than_generation(
    tmp_path: Path, generation: str, requirements: str, message: str
) -> None:
    messages = [each.message for each in findings(tmp_path, requirements, "", generation)]
    reported = [text for text in messages if generation and generation in text]
    assert bool(reported) == bool(message)
    assert not message or any(message in text for text in reported)
