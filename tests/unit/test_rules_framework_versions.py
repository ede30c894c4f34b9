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
    "jax[tpu]==0.7.0": (1, "needs Python 3.11 to 3.13, and the image has Python 3.10", "3.10"),
    "jax[tpu]>=0.7": (1, "needs Python 3.11 or later", "3.10"),
    "jax[tpu]==0.12.0.1": (1, "needs Python 3.12 or later", "3.10"),
    "torch_tpu==0.2.0": (1, "needs Python 3.11 to 3.14", "3.10"),
    "numpy\ntorch==2.10.0\ntorch_tpu==0.2.0": (2, "requires torch>=2.11.0,<=2.15.0", "3.12"),
    "libtpu==0.0.49\ntorch_tpu==0.2.0": (1, "torch-tpu==0.2.0 needs libtpu>=0.0.50", "3.12"),
    "torch_xla[tpu]==2.9.0\ntorch_tpu==0.2.0": (1, "different releases of torch", "3.12"),
    "numpy\nlibtpu==0.0.52": (2, "libtpu==0.0.52 needs Python 3.11 or later", "3.10"),
    "jax[tpu]==0.6.2\ntorch==2.15.0": (
        2,
        "torch==2.15.0 needs Python 3.11 or later, and the image has Python 3.10",
        "3.10",
    ),
}
# The same for a job that brings its Python.
REJECTED_FOR = {
    ("jax[tpu]==0.12.0.1", "3.11"): (1, "needs Python 3.12 or later, and the job runs on"),
    ("jax[tpu]==0.6.2", "3.14"): (1, "needs Python 3.10 to 3.13"),
    ("tensorflow-tpu==2.19.1", "3.13"): (1, "needs Python 3.9 to 3.12"),
    ("tensorflow==2.15.1", "3.12"): (1, "needs Python 3.9 to 3.11"),
    ("torch==2.9.0\ntorch_xla[tpu]==2.9.0", "3.13"): (2, "needs Python 3.10 to 3.12"),  # libtpu
    ("torch_tpu==0.2.0", "3.15"): (1, "needs Python 3.11 to 3.14"),
}
ACCEPTED_FOR = [
    ("jax[tpu]==0.12.0.1", "3.12"),
    ("jax[tpu]>=0.8", "3.11"),
    ("jax[tpu]", "3.15"),
    ("tensorflow-tpu==2.20.0", "3.13"),
    ("torch==2.9.0\ntorch_xla[tpu]==2.9.0", "3.12"),
    ("torch_tpu", "3.14"),
    ("torch==2.13.0\ntorch_tpu==0.2.0\njax", "3.12"),
    ("tensorflow-tpu==2.20.0\ntorch_tpu==0.2.0", "3.12"),
]
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


def bringing(*pythons: str) -> Target:
    """The target of a job that may run on these Pythons, which it brings."""
    return Target(python=pythons[0], pythons=pythons, asked_by="job.python")


@pytest.mark.parametrize("requirements", REJECTED)
def test_conflict_is_reported(tmp_path: Path, requirements: str) -> None:
    line, text, _ = REJECTED[requirements]
    finding = next(each for each in findings(tmp_path, requirements) if text in each.message)
    assert (finding.path.name, finding.line) == ("requirements.txt", line)
    assert finding.severity == "error"


@pytest.mark.parametrize(("requirements", "python"), REJECTED_FOR)
def test_release_for_another_python_is_an_error(
    tmp_path: Path, requirements: str, python: str
) -> None:
    line, text = REJECTED_FOR[requirements, python]
    (finding,) = RuleChecker(tmp_path, "TPU505").findings(
        "", bringing(python), {"requirements.txt": requirements}
    )
    assert text in finding.message
    assert (finding.path.name, finding.line, finding.severity) == (
        "requirements.txt",
        line,
        "error",
    )


@pytest.mark.parametrize(("requirements", "python"), ACCEPTED_FOR)
def test_release_for_the_job_python_is_not_reported(
    tmp_path: Path, requirements: str, python: str
) -> None:
    files = {"requirements.txt": requirements}
    assert RuleChecker(tmp_path, "TPU505").findings("", bringing(python), files) == []


@pytest.mark.parametrize(
    ("requirements", "pythons", "older", "advised"),
    [
        # The oldest Python that has the newest release that is allowed.
        ("jax[tpu]==0.7.0", (), "jax[tpu]<=0.6.2", "3.11"),
        ("jax[tpu]>=0.8", (), "jax[tpu]<=0.6.2", "3.12"),
        ("jax[tpu]==0.12.0", ("3.11",), "jax[tpu]<=0.10.2", "3.12"),
        ("torch_tpu==0.2.0", (), "", "3.11"),
        # For several requirements, one that has all of them.
        ("jax[tpu]>=0.7\ntorch==2.8.0", (), "jax[tpu]<=0.6.2", "3.12"),
        ("jax[tpu]>=0.7\ntensorflow==2.15.1", (), "jax[tpu]<=0.6.2", "3.11"),
        # No Python has all of them.
        ("jax[tpu]==0.12.0.1\ntensorflow==2.15.1", (), "jax[tpu]<=0.6.2", ""),
    ],
)
def test_advice_names_the_job_python(
    tmp_path: Path, requirements: str, pythons: tuple[str, ...], older: str, advised: str
) -> None:
    target = bringing(*pythons) if pythons else Target()
    files = {"requirements.txt": requirements}
    finding = RuleChecker(tmp_path, "TPU505").findings("", target, files)[0]
    assert f"Use {older}" in finding.hint or not older
    setting = finding.hint.partition("et the job's Python:\n    job: ")[2]
    assert setting == (f"{{python: '{advised}'}}" if advised else "")


LOCK = """version = 1
revision = 3
requires-python = ">=3.11"

[[package]]
name = "a"
version = "0"
source = { virtual = "." }
dependencies = [
    { name = "jax", extra = ["tpu"] },
]

[package.optional-dependencies]
more = [
    { name = "tensorflow-cpu" },
]

[[package]]
name = "jax"
version = "0.12.0"
source = { registry = "https://example.com/simple" }
dependencies = [
    { name = "jaxlib" },
]

[package.optional-dependencies]
tpu = [
    { name = "libtpu" },
]

[[package]]
name = "jaxlib"
version = "0.12.0"
source = { registry = "https://example.com/simple" }

[[package]]
name = "libtpu"
version = "0.0.50"
source = { registry = "https://example.com/simple" }

[[package]]
name = "tensorflow-cpu"
version = "2.20.0"
source = { registry = "https://example.com/simple" }
"""


def test_exact_versions_of_a_lock_are_judged(tmp_path: Path) -> None:
    files = {"pyproject.toml": '[project]\nname = "a"\nversion = "0"\n', "uv.lock": LOCK}
    checker = RuleChecker(tmp_path, "TPU505")
    reported = checker.findings("", bringing("3.11"), files)
    assert {(each.path.name, each.severity) for each in reported} == {("uv.lock", "error")}
    assert reported[0].line == LOCK.split("\n").index('version = "0.12.0"') + 1
    assert reported[0].message.startswith("jax[tpu]==0.12.0 needs Python 3.12 or later")
    assert reported[0].hint == (
        "Lock a release for Python 3.11, or set the job's Python:\n    job: {python: '3.12'}"
    )
    assert checker.findings("", bringing("3.12"), files) == []
    # The script's own requirements stand for those of the folder.
    script = '# /// script\n# dependencies = ["jax[tpu]==0.6.2"]\n# ///\n'
    assert checker.findings(script, Target(), files) == []


def test_no_python_for_all_requirements(tmp_path: Path) -> None:
    """Each of them has releases for a Python that the job may bring, but not for the same one."""
    files = {"requirements.txt": "jax==0.12.0\nlibtpu==0.0.50\ntensorflow==2.15.1\n"}
    target = bringing("3.11", "3.12", "3.13", "3.14", "3.15")
    (finding,) = RuleChecker(tmp_path, "TPU505").findings("", target, files)
    assert finding.message == (
        "tensorflow==2.15.1 needs Python 3.9 to 3.11, and the other requirements Python "
        "3.12 or later"
    )
    assert (finding.line, finding.severity) == (3, "error")


def test_what_a_later_release_or_another_index_may_have_is_a_risk(tmp_path: Path) -> None:
    for requirements, target, severity in (
        ("tensorflow-tpu", bringing("3.15"), "risk"),
        ("tensorflow-tpu<3", bringing("3.15"), "error"),
        ("--extra-index-url https://example.com/simple\njax[tpu]==0.8.0", Target(), "risk"),
    ):
        (finding,) = RuleChecker(tmp_path, "TPU505").findings(
            "", target, {"requirements.txt": requirements}
        )
        assert finding.severity == severity


@pytest.mark.parametrize("requirements", [*ACCEPTED, "torch==2.9.0\ntorch_xla[tpu]==2.9.0"])
def test_fitting_versions_are_not_reported(tmp_path: Path, requirements: str) -> None:
    assert findings(tmp_path, requirements) == []


@pytest.mark.soak
@pytest.mark.parametrize(
    ("requirements", "python", "is_rejected"),
    [
        *((requirements, row[2], True) for requirements, row in REJECTED.items()),
        *((*row, True) for row in REJECTED_FOR),
        *((*row, False) for row in [*ACCEPTED.items(), *ACCEPTED_FOR]),
    ],
)
def test_installer_agrees(requirements: str, python: str, is_rejected: bool) -> None:
    resolve = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--python-version", python]
    resolve += ["--python-platform", "x86_64-manylinux_2_35", "--only-binary", ":all:", "-"]
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
        ('jax==0.6.2\nlibtpu==0.0.17 ; sys_platform == "linux"', False),
        ('jax==0.6.2\njax[tpu] ; platform_system == "Linux"', False),
        ("jax==0.6.2 \\\n    --hash=sha256:0123", True),
    ],
)
def test_jax_without_libtpu(tmp_path: Path, requirements: str, reported: bool) -> None:
    messages = [finding.message for finding in findings(tmp_path, requirements)]
    assert [("JAX uses the CPU" in message) for message in messages] == [True] * reported
    assert not any("\\" in message for message in messages)


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
