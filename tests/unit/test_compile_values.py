"""The program lowered for the TPU computes the same as the script's step."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

import tpuctl.preflight
from tpuctl.local_cloud.machine_images import ImageStore

TENSORFLOW = "2.18.0"


@pytest.mark.soak
@pytest.mark.tensorflow
def test_pure_step_matches_step_with_variables(tmp_path: Path) -> None:
    image = asyncio.run(ImageStore().ensure(TENSORFLOW, print))
    shim = Path(tpuctl.preflight.__file__).parent / "shim"
    check = Path(__file__).parent / "checks" / "step_values.py"
    checked = subprocess.run(
        [image / "bin" / "python3", check, shim],
        cwd=tmp_path,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert checked.stdout.splitlines()[-1:] == ["checked 17"], checked.stdout + checked.stderr
