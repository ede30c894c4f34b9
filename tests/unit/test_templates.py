"""Requirements of every template."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl import assets
from tpuctl.flows.init import SCRIPTS, describe_templates, list_templates, write
from tpuctl.model.stack import load_stack
from tpuctl.preflight.check import check_project
from tpuctl.preflight.findings import Target

JOBS = sorted(path.name for path in (assets.templates() / "jobs").iterdir())


@pytest.mark.parametrize("name", JOBS)
def test_template_job_has_stack_file_and_script(name: str) -> None:
    assert name in list_templates(), f"write templates/stacks/{name}.yaml"
    folder = assets.templates() / "jobs" / name
    assert any((folder / script).is_file() for script in SCRIPTS), f"{folder} has none of {SCRIPTS}"


@pytest.mark.parametrize("name", list_templates())
def test_template_is_described_and_its_stack_file_loads(name: str, tmp_path: Path) -> None:
    assert describe_templates()[name].endswith("."), f"templates/stacks/{name}.yaml: its first line"
    written = write(name, tmp_path, name="", project="my-project", local=False)
    assert load_stack(written.stack_file).project == "my-project"


@pytest.mark.parametrize("name", JOBS)
def test_template_script_has_no_findings(name: str) -> None:
    folder = assets.templates() / "jobs" / name
    script = next(folder / name for name in SCRIPTS if (folder / name).is_file())
    assert check_project(script, Target(tensorflow="2.18.0", replicas=8)).findings == ()
