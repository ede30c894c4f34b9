"""The programs of docs/guides/automation.md, and what importing tpuctl loads."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tpuctl
from tests.support.commands import succeed
from tpuctl import BlockingTpuctl, TpuctlError
from tpuctl.local_cloud.server_process import LocalCloud

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "automation.md"
STACK = (
    "stack: from-python\nproject: {id: local-project}\n"
    "tpu: {type: v2-8, runtime: tpu-ubuntu2204-base, zones: [us-central1-b]}\n"
)
SCRIPT = """
import json, sys
for step in range(int(sys.argv[2])):
    print(json.dumps({"step": step, "loss": 8 / (step + 1)}))
"""


@pytest.mark.soak
def test_programs_of_the_automation_guide(local_cloud: LocalCloud, tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text(STACK, "utf-8")
    (tmp_path / "train.py").write_text(SCRIPT, "utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    printed = []
    for program in programs:
        (tmp_path / "program.py").write_text(program, "utf-8")
        done = succeed([sys.executable, "-W", "error", "program.py"], cwd=tmp_path)
        printed.append(done.stdout)
    life, later, function, steps, wrong = printed
    assert "US dollars an hour" in life
    assert '"step": 2' in life, "the log is shown"
    assert "the job exited with 0" in life
    assert "still charged" not in life
    assert re.search(r"^\d{8}-\d{6}-\w+ succeeded 0$", later, re.M)
    assert "loss (2, " in later
    assert function == "training at 0.5\nloss: 50.0\n"
    assert re.search(r"^\d+ steps$", steps, re.M)
    assert wrong.splitlines()[0].isdigit()


def test_import_is_lazy() -> None:
    program = "import sys, tpuctl; print(*(one for one in sys.modules if one[:7] == 'tpuctl.'))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["tpuctl.version"]
    for name in tpuctl.__all__:
        assert getattr(tpuctl, name) is not None
    assert set(tpuctl.__all__) <= set(dir(tpuctl))
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = tpuctl.nonesuch


async def test_blocking_api_works_in_running_event_loop(tmp_path: Path) -> None:
    assert asyncio.get_running_loop().is_running()
    stack = BlockingTpuctl(tmp_path / "absent.yaml", cloud="local")
    with stack, pytest.raises(TpuctlError, match=r"absent\.yaml"):
        stack.plan()
    stack.close()  # idempotent
