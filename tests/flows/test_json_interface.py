"""The command line for programs: answers match the published schema, nothing prompts without a
terminal, and repeated commands change nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.support.projects import Bench, Project
from tpuctl.api import Tpuctl
from tpuctl.cli.completion import name_history
from tpuctl.cli.help.commands import COMMANDS
from tpuctl.cli.main import run
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.view.schemas import RESPONSES, envelope_schema, events_schema

pytestmark = pytest.mark.long

SCRIPT = """
import json
for step in range(1, 4):
    print(json.dumps({"step": step, "loss": 8 / step}), flush=True)
"""
STACK = (
    "stack: machine-use\nproject: {id: local-project}\n"
    "tpu: {type: v2-8, runtime: tpu-ubuntu2204-base, zones: [us-central1-b]}\n"
)
# `dashboard`, `forward` and `notebook` run until a signal, `rehearse` downloads an image, `ci` is
# tested with pipelines, `export` with JobSets, `notify` with receivers, `local replay` with
# recordings, and `mcp` speaks another protocol.
TESTED_SEPARATELY = {"dashboard", "export jobset", "forward", "notebook", "notify test"}
TESTED_SEPARATELY |= {"rehearse", "mcp"}
TESTED_SEPARATELY |= {"ci", "ci start", "ci follow", "ci summary"}
TESTED_SEPARATELY |= {
    "local down",
    "local prune",
    "local reset",
    "local fault release",
    "local replay",
    "profile",
}
COMMANDS_WITHOUT_STACK = (
    *("types", "zones", "runtimes", "prices v3-8", "prices --machines", "prices --disks"),
    *("prices --storage", "prices", "quota", "quota v3-8", "help run", "check --explain TPU101"),
    *("ci", "ci github -o a.yml", "ci gitlab -o b.yml", "ci cloudbuild -o c.yml", "init --list"),
    "skill",
    "up --help",
    *("local up", "local status", "local env", "local set", "local token user:ann@example.com"),
    *("local fault add unavailable", "local fault list", "local fault remove --all"),
)


def command_of(line: str) -> str:
    """The longest command name in the line that has a schema."""
    words = line.split()
    return next(name for end in (3, 2, 1) if (name := " ".join(words[:end])) in RESPONSES)


def forbid_additional_keys(schema: Any) -> Any:
    """The schema with additional keys forbidden, so that new keys must be documented."""
    if isinstance(schema, dict):
        schema = {name: forbid_additional_keys(value) for name, value in schema.items()}
        if "properties" in schema and "required" in schema and "title" in schema:
            schema.setdefault("additionalProperties", False)
        return schema
    return (
        [forbid_additional_keys(value) for value in schema] if isinstance(schema, list) else schema
    )


ENVELOPE = forbid_additional_keys(envelope_schema())
EVENTS = Draft202012Validator(
    forbid_additional_keys(events_schema()),
    registry=Registry().with_resource("envelope.schema.json", Resource.from_contents(ENVELOPE)),
)


@pytest.fixture(scope="module")
def bench(local_cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("machine-use")
    (folder / "tpuctl.yaml").write_text(STACK, "utf-8")
    (folder / "train.py").write_text(SCRIPT, "utf-8")
    yield Bench(Tpuctl(folder / "tpuctl.yaml", cloud="local"), [])


def answer(bench: Bench, *arguments: str, code: int = 0) -> dict[str, Any]:
    exit_code, out, stderr = bench.type("--json", *arguments)
    assert out, f"{arguments} printed no answer, stderr:\n{stderr}"
    envelope: dict[str, Any] = json.loads(out)
    assert envelope["exit_code"] == exit_code
    Draft202012Validator(ENVELOPE).validate(envelope)
    assert envelope["exit_code"] == code, envelope
    assert bool(envelope["diagnostics"]) or code in (0, 1), "a failure has diagnostics"
    return envelope


def test_every_command_has_a_schema() -> None:
    commands = {name.partition(" ")[0] for name in RESPONSES}
    assert commands == set(COMMANDS)
    Draft202012Validator.check_schema(envelope_schema())
    Draft202012Validator.check_schema(events_schema())


def test_strict_schema_rejects_undocumented_keys() -> None:
    envelope = {"version": 1, "command": "stop", "status": "ok", "exit_code": 0, "diagnostics": []}
    data: dict[str, Any] = {"job": "x", "state": "stopped", "exit_code": None}
    check = Draft202012Validator(ENVELOPE)
    assert check.is_valid({**envelope, "data": data})
    assert not check.is_valid({**envelope, "data": {**data, "new": 1}})
    assert not check.is_valid({**envelope, "data": {"job": "x"}})
    assert not check.is_valid({**envelope, "data": data, "exit_code": 3})
    assert Draft202012Validator(envelope_schema()).is_valid(
        {**envelope, "data": {**data, "new": 1}}
    )


def lines_of(bench: Bench, *arguments: str) -> list[dict[str, Any]]:
    """The printed events and the envelope, validated against the schema."""
    code, out, stderr = bench.type(*arguments, "--json", "--events")
    assert code == 0, stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    for line in lines:
        EVENTS.validate(line)
    assert "version" in lines[-1], "the envelope comes last"
    return lines


def run_quiet(bench: Bench, *arguments: str) -> str:
    """Standard output with --quiet, where stderr must be empty."""
    code, out, stderr = bench.type(*arguments, "--quiet")
    assert (code, stderr) == (0, ""), arguments
    return out


def test_stack_lifecycle_in_json(bench: Bench) -> None:
    """One stack and a job through every command: valid answers, and repeating is harmless."""
    done = set()

    def good(*arguments: str) -> Any:
        response = answer(bench, *arguments)
        done.add(response["command"])
        return response["data"]

    good("init", "empty", "--folder", "other")
    good("check")
    good("check", "train.py")
    good("doctor")
    good("plan")
    up = lines_of(bench, "up", "--yes")
    assert {change["action"] for change in up[-1]["data"]["changes"]} != {"nothing"}
    again = good("up", "--yes")
    assert {change["action"] for change in again["changes"]} == {"nothing"}, (
        "the second `up` changes nothing"
    )
    run_lines = lines_of(bench, "run", "train.py")
    done.add(run_lines[-1]["command"])
    assert {"StepStarted", "StepFinished"} <= {line.get("event") for line in up}
    assert {"LogChunk", "JobEnded"} <= {line.get("event") for line in run_lines}
    job = run_lines[-1]["data"]["job"]
    for command in ("jobs", "jobs show", "logs", "logs -f", "wait", "explain", "report"):
        name_history.forget("local")
        data = good(*command.split())
        assert job in json.dumps(data)
        assert job in name_history.remembered_stacks()[0].jobs, "completion offers it"
    assert job in run_quiet(bench, "jobs")
    in_yaml = yaml.safe_load(run_quiet(bench, "jobs", "-o", "yaml"))
    assert in_yaml["data"] == good("jobs")
    header, _, line = run_quiet(bench, "jobs", "--format", "wide").splitlines()
    assert "submitted by" in header
    assert in_yaml["data"][0]["submitted_by"] in line
    assert "bucket" in run_quiet(bench, "orphans", "--all", "-o", "wide")
    assert run_quiet(bench, "status")
    assert '"step": 3' in run_quiet(bench, "logs")
    [same_job] = good("run", "--yes", "train.py", "--each", "seed=1")["jobs"]
    assert same_job["values"] == {"seed": "1"}
    assert good("jobs", "compare", job, same_job["job"])["jobs"] == [job, same_job["job"]]
    assert good("jobs", "run") == {"jobs": 0}
    for command in (
        "stop",
        "status",
        "ssh -- true",
        "ssh-config --print",
        "cp train.py 0:copied.py",
        "orphans --all",
    ):
        good(*command.split())
    good("debug-dump", "--yes")
    after_down = good("down", "--yes")
    assert {resource["state"] for resource in after_down["remaining"] if resource["billable"]} <= {
        "deleted",
        "kept",
    }
    run_quiet(bench, "down", "--yes")
    kept_resources = [
        resource for resource in after_down["remaining"] if resource["state"] == "kept"
    ]
    assert good("down", "--yes")["remaining"] == kept_resources, "the second `down` deletes nothing"
    good("down", "--yes", "--delete-bucket")
    good("status")
    untested = {name for name in RESPONSES if name not in done} - TESTED_SEPARATELY
    assert untested <= set(map(command_of, COMMANDS_WITHOUT_STACK)), untested


@pytest.mark.parametrize("line", COMMANDS_WITHOUT_STACK)
def test_json_of_commands_without_stack(
    bench: Bench,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(bench.folder)
    if line.startswith("local fault remove"):
        assert run(["local", "fault", "add", "unavailable"]) == 0
        capsys.readouterr()
    assert run(["--json", *line.split()]) == 0
    response = json.loads(capsys.readouterr().out)
    if "fault" in line:  # it would affect other tests
        run(["local", "fault", "remove", "--all"])
    Draft202012Validator(ENVELOPE).validate(response)
    assert response["command"] == command_of(line)
    assert response["data"] is not None


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("up", 2),  # requires confirmation, see below
        ("run absent.py", 2),
        ("run --timeout x train.py", 2),
        ("logs 20200101-000000-absent", 1),
        ("wait 20200101-000000-absent", 1),
        ("stop 20200101-000000-absent", 1),
        ("explain 20200101-000000-absent", 1),
        ("report 20200101-000000-absent", 1),
        ("jobs show 20200101-000000-absent", 1),
        ("check absent.py", 2),
        ("check --explain TPU999", 2),
        ("rehearse absent.py", 2),
        ("status --stack x", 2),
        ("down --stack x", 2),
        ("orphans --nonesuch", 2),
        ("ssh", 2),
        ("cp a b", 2),
        ("forward 0", 2),
        ("init nonesuch", 2),
        ("types --zone mars", 2),
        ("zones --type v9", 2),
        ("runtimes --type v9", 2),
        ("prices v9", 2),
        ("quota v9", 2),
        ("help nonesuch", 2),
        ("ci nonesuch", 2),
        ("export jobset train.py", 2),  # of a TPU that GKE does not sell
        ("local up --pace warp", 2),
        ("local fault add nonesuch", 2),
        ("nonesuch", 2),
        ("doctor --nonesuch", 2),
    ],
)
def test_json_of_failed_commands(
    bench: Bench,
    command: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(bench.folder)
    assert run(["--json", *command.split()]) == code
    response = json.loads(capsys.readouterr().out)
    Draft202012Validator(ENVELOPE).validate(response)
    assert (response["status"], response["exit_code"]) == ("failed", code)
    assert response["diagnostics"], "a failure has diagnostics"


@pytest.mark.parametrize(
    ("command", "flag"),
    [("up", "--yes"), ("run --up train.py", "--yes"), ("local reset", "--yes")],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_commands_do_not_prompt_without_terminal(
    bench: Bench,
    command: str,
    flag: str,
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(bench.folder)
    read_end, write_end = os.pipe()
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        assert run([*command.split(), *(["--json"] if as_json else [])]) == 2
    captured = capsys.readouterr()
    assert flag in (captured.out if as_json else captured.err)


def test_quiet_prints_errors(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.folder)
    assert run(["logs", "20200101-000000-absent", "--quiet"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "20200101-000000-absent" in captured.err


@pytest.mark.parametrize(("fault", "code"), [("stockout", 75), ("quota", 76)])
def test_missing_capacity_and_quota_exit_codes(
    project: Project, null_cloud: LocalCloud, fault: str, code: int
) -> None:
    bench = project.stack()
    remote_control.add_fault(null_cloud, fault, project=project.id, times="unlimited")
    response = answer(bench, "up", "--yes", code=code)
    assert [diagnostic["summary"] for diagnostic in response["diagnostics"]]
    answer(bench, "down", "--yes", "--delete-bucket")
