"""Manifests of JobSets, from the cases in `tests/cases/jobset`, against JobSet's schema."""

from __future__ import annotations

import asyncio
import json
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_lines import parse
from tests.support.jobset_schema import jobset_validator
from tpuctl.api import Tpuctl
from tpuctl.errors import Usage
from tpuctl.flows.jobs.export import ExportedJobSet
from tpuctl.jobs.jobset import JobSetSettings
from tpuctl.model.events import Event, WarningIssued, ignore

CASES = sorted((Path(__file__).parents[1] / "cases/jobset").glob("*.toml"))
SETTINGS = JobSetSettings(queue="research", image="example.com/jax:1", service_account="trainer")


def export(
    folder: Path,
    stack: str,
    settings: JobSetSettings = SETTINGS,
    events: list[Event] | None = None,
) -> ExportedJobSet:
    """The job `train.py --steps 10` of a stack file, without an upload."""
    (folder / "job").mkdir(exist_ok=True)
    (folder / "job/train.py").write_text("print('trained')\n", "utf-8")
    (folder / "tpuctl.yaml").write_text(f"stack: bert\nproject: {{id: my-project}}\n{stack}")
    emit = events.append if events is not None else ignore
    tpuctl = Tpuctl(folder / "tpuctl.yaml", emit=emit)
    work = tpuctl.export_jobset(
        folder / "job/train.py", ["--steps", "10"], settings, "bert-1", check=False, upload=False
    )
    return asyncio.run(work)


def parts_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """The parts that cases name."""
    (replicated,) = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    variables = {
        each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]
    }
    spec = {**manifest["spec"], "replicatedJobs": replicated}
    return {
        "metadata": manifest["metadata"],
        "spec": spec,
        "job": job,
        "pod": pod,
        "container": container,
        "variables": variables,
        "shared": json.loads(variables["TPUCTL_SPEC"]),
    }


def differences(expected: Any, actual: Any, path: str) -> list[str]:
    """Where the actual value differs from the expected one, of which tables may be incomplete."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return [
            difference
            for name, value in expected.items()
            for difference in differences(value, actual.get(name), f"{path}.{name}")
        ]
    return [] if expected == actual else [f"{path}: {actual!r}, expected {expected!r}"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_manifest_is_as_expected(path: Path, tmp_path: Path) -> None:
    case = tomllib.loads(path.read_text("utf-8"))
    assert case.pop("why")
    stack, absent, error = case.pop("stack"), case.pop("absent", ()), case.pop("error", None)
    if error is not None:
        with pytest.raises(Usage) as raised:
            export(tmp_path, stack)
        (diagnostic,) = raised.value.diagnostics
        assert diagnostic.where == error["where"]
        assert error["text"] in diagnostic.detail
        assert diagnostic.hint
        return
    text = export(tmp_path, stack).manifest
    manifest = yaml.safe_load(text)
    errors = [f"{list(e.path)}: {e.message}" for e in jobset_validator().iter_errors(manifest)]
    assert errors == []
    parts = parts_of(manifest)
    assert [line for name in case for line in differences(case[name], parts[name], name)] == []
    for name in absent:
        part, key = name.split(".")
        assert key not in parts[part], name


def test_schema_rejects_what_kubernetes_would_drop(tmp_path: Path) -> None:
    stack = "tpu: {type: v6e-1, zones: [us-east5-b]}\njob: {framework: jax}\n"
    manifest = yaml.safe_load(export(tmp_path, stack).manifest)
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    job["maxRestarts"] = 3
    job["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": "8471"}]
    messages = " ".join(error.message for error in jobset_validator().iter_errors(manifest))
    assert "'maxRestarts' was unexpected" in messages
    assert "'8471' is not of type 'integer'" in messages


@pytest.mark.parametrize(
    ("job", "requirements", "settings", "expected"),
    [
        ("{framework: tensorflow}", "numpy", JobSetSettings(), ["The image has no TensorFlow"]),
        ("{framework: tensorflow}", "tensorflow-tpu==2.18", JobSetSettings(), []),
        ("{framework: tensorflow}", "numpy", SETTINGS, []),
        ("{framework: jax}", "numpy", JobSetSettings(), []),
        (
            "{framework: jax, retries: {failure: 1}}",
            "numpy",
            JobSetSettings(),
            ["A script that fails is restarted more often"],
        ),
    ],
)
def test_differences_are_warned_of(
    tmp_path: Path, job: str, requirements: str, settings: JobSetSettings, expected: list[str]
) -> None:
    events: list[Event] = []
    stack = f"tpu: {{type: v6e-1, zones: [us-east5-b]}}\njob: {job}\n"
    (tmp_path / "job").mkdir()
    (tmp_path / "job/requirements.txt").write_text(requirements, "utf-8")
    export(tmp_path, stack, settings, events)
    warnings = [event.diagnostic for event in events if isinstance(event, WarningIssued)]
    assert [warning.summary for warning in warnings] == expected
    assert all(warning.hint for warning in warnings)


def test_defaults_of_the_command_are_those_of_the_python_interface() -> None:
    defaults = {
        option.name: option.default for option in parse(["export", "jobset"]).command.params
    }
    settings = JobSetSettings()
    assert {name: defaults[name] for name in asdict(settings)} == asdict(settings)
