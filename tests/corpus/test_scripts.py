"""The check has no false positives on whole scripts as people write them."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.support.job_environment import job_python
from tests.support.subprocesses import run_captured
from tpuctl.preflight.check import check_project
from tpuctl.preflight.findings import Finding, Severity, Target

FOLDER = Path(__file__).parent / "scripts"
ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "templates" / "jobs"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
VM = Target(kind="vm", tensorflow="2.18.0", replicas=8)
# Real risks and costs by script: code and line.
RISKS: dict[str, list[str]] = {}
COSTS = {
    "evaluation_loop.py": ["TPU411:82"],
    "jax_classifier.py": ["TPU610:76", "TPU609:79"],
    "mirrored_gpus.py": ["TPU413:17"],
}
# Scripts that other libraries run, which the environment does not have.
SOME = 3  # of the other scripts are run
OTHERS = {"jax_classifier.py", "keras_on_jax.py", "keras_on_torch.py", "pytorch_images.py"}


def format_findings(findings: tuple[Finding, ...]) -> list[str]:
    return [
        f"{finding.path.name}:{finding.line}: {finding.code} {finding.message}"
        for finding in findings
    ]


def test_scripts_are_numerous_and_complete() -> None:
    assert len(SCRIPTS) >= 25
    lines = {name: len((FOLDER / name).read_text("utf-8").splitlines()) for name in SCRIPTS}
    assert all(60 <= count <= 200 for count in lines.values()), lines


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_has_no_false_positives(script: str) -> None:
    report = check_project(FOLDER / script, VM)
    risks = [finding for finding in report.findings if finding.severity is Severity.risk]
    others = [finding for finding in report.findings if finding.severity is not Severity.risk]
    assert [f"{finding.code}:{finding.line}" for finding in others] == COSTS.get(script, []), (
        format_findings(tuple(others))
    )
    assert [f"{finding.code}:{finding.line}" for finding in risks] == RISKS.get(script, []), (
        format_findings(tuple(risks))
    )


@pytest.mark.parametrize("script", ["bert-pretraining/pretrain.py", "korean-wikipedia/prepare.py"])
@pytest.mark.parametrize(
    "target",
    [
        VM,
        pytest.param(Target(kind="vm", tensorflow="2.15.1", replicas=8), marks=pytest.mark.soak),
        Target(kind="node", tensorflow="2.12.1", replicas=8),  # the oldest that the job supports
    ],
    ids=lambda target: f"{target.kind}-{target.tensorflow}",
)
def test_bundled_job_has_no_false_positives(script: str, target: Target) -> None:
    report = check_project(JOBS / script, target)
    assert (
        format_findings(tuple(finding for finding in report.findings if finding.code != "TPU503"))
        == []
    )
    assert len(report.files) > 4  # including its imports


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(SOME))
def test_sampled_scripts_run(number: int, tmp_path: Path) -> None:
    """On this machine's CPU, for a step or two; others with each seed of the run."""
    script = random.choice([name for name in SCRIPTS if name not in OTHERS][number::SOME])
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TPU")},
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TPUCTL_OUTPUT": str(tmp_path / "output"),
    }
    (tmp_path / "output").mkdir()
    completed = run_captured(
        [job_python(), FOLDER / script, "--steps", "2"], cwd=tmp_path, env=environment, timeout=500
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


def site_packages() -> Path:
    command = [job_python(), "-c", "import transformers; print(transformers.__path__[0])"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(result.stdout.strip()).parent


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_keras_layers_have_no_errors() -> None:
    """In addition to `test_correct.py`: layers that training programs use everywhere."""
    files = sorted(site_packages().glob("tf_keras/src/layers/**/*.py"))
    assert len(files) > 100
    errors = []
    for path in files:
        report = check_project(path, VM)
        errors += [finding for finding in report.errors if finding.path == path]
    assert format_findings(tuple(errors)) == []
