"""The bundled job, unmodified, observed from inside as in a rehearsal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_environment import JOB
from tpuctl.preflight.rehearsal.observations import (
    Checkpoint,
    Ended,
    Refused,
    Started,
    Step,
    Strategy,
)

pytestmark = [pytest.mark.tensorflow, pytest.mark.soak, pytest.mark.timeout(1300)]
SMALL = [
    *("--text", str(JOB / "sample"), "--vocabulary-size", "400", "--sequence-length", "32"),
    *("--batch", "16", "--steps", "400", "--steps-per-call", "5", "--dropout", "0"),
]
TPU_VM = {"TPU_NAME": "local", "TPUCTL_CLOUD": "google", "COLAB_TPU_1VM": "1"}
LEGACY_KERAS = {"TF_USE_LEGACY_KERAS": "1"}  # the job sets it, too, but after the fork


def test_bundled_job_is_observed_saving_and_restoring_its_checkpoint(
    rehearse: Callable[..., Any], job_python: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "python": job_python,
        "steps": 4,
        "environment": TPU_VM | LEGACY_KERAS,
        "replicas": 2,
        "mode": "replicas",
    }
    arguments = [*SMALL, "--output", str(tmp_path / "output")]
    first = rehearse(str(JOB / "pretrain.py"), *arguments, **options)
    assert "stopped at step 5 of 400" in first.output, first.output
    assert first.only(Started).tensorflow == "2.18.0"
    strategy = first.only(Strategy)
    assert (strategy.replicas, strategy.where.file.name) == (2, "devices.py")
    assert first.all(Refused) == []
    steps = first.all(Step)
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert {step.examples for step in steps} == {16}
    assert all(math.isfinite(step.loss) for step in steps)
    assert all(0 <= step.waited <= step.seconds for step in steps)
    rows = (tmp_path / "output" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 5]
    saved = first.only(Checkpoint)
    assert (saved.action, Path(saved.path).name, saved.step) == ("saved", "model-5", 5)
    assert first.only(Ended).reason == "steps"
    second = rehearse(str(JOB / "pretrain.py"), *arguments, **options)
    restored, saved = second.all(Checkpoint)
    assert (restored.action, Path(restored.path).name) == ("restored", "model-5")
    assert (saved.action, Path(saved.path).name) == ("saved", "model-10")
