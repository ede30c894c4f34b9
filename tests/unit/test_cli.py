"""The command line without any cloud: help, options, envelopes and exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_lines import parse
from tpuctl import assets
from tpuctl.cli.jobs.script_arguments import AFTER_DASHES
from tpuctl.cli.main import run
from tpuctl.flows.stack.init import guess_script

MINIMAL = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8}\n"


pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.mark.parametrize(
    "words",
    [
        "--cloud local --json -y up",
        "up --json --cloud local -y",
        "--json up --cloud=local -y",
    ],
)
def test_global_options_are_accepted_anywhere(words: str) -> None:
    context = parse(words.split())
    root = context.find_root().params
    assert context.command.name == "up"
    assert (root["cloud"], root["json"], root["yes"], root["quiet"]) == ("local", True, True, False)


def test_global_options_after_double_dash_belong_to_script() -> None:
    context = parse(["run", "job.py", "--cloud=local", "--", "--json", "--cloud", "x"])
    root = context.find_root().params
    assert (root["cloud"], root["json"]) == ("local", False)
    assert context.params["script"] == "job.py"
    assert context.meta[AFTER_DASHES] == ["--json", "--cloud", "x"]


def envelope(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = run([*arguments, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == code
    assert set(answer) == {"version", "command", "status", "exit_code", "data", "diagnostics"}
    return answer


def test_json_envelope_of_success(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text(MINIMAL, "utf-8")
    answer = envelope(capsys, "check")
    assert (answer["command"], answer["status"], answer["exit_code"]) == ("check", "ok", 0)


def test_check_prices_all_slices(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tpu = "type: v5p-16, zones: [us-east5-a], api: compute"
    prices = {}
    for slices in (1, 2):
        text = f"project: {{id: my-project}}\ntpu: {{{tpu}, slices: {slices}}}\n"
        (tmp_path / "tpuctl.yaml").write_text(text, "utf-8")
        price = envelope(capsys, "check")["data"]["price"]
        prices[slices] = float(price.removeprefix("$").partition("/")[0])
    assert prices[2] == pytest.approx(2 * prices[1], abs=0.02)
    assert run(["check"]) == 0
    assert "2 x v5p-16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["check"], 2),  # no stack file
        (["frobnicate"], 2),
        (["check", "--bogus"], 2),
        (["types", "--zone", "mars-north1-a"], 2),
        (["prices", "v3-9"], 2),
        (["init", "nonesuch", "--project", "my-project"], 2),
    ],
)
def test_json_envelope_of_failure(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    answer = envelope(capsys, *arguments)
    assert (answer["status"], answer["exit_code"]) == ("failed", code)
    assert len(answer["diagnostics"]) == 1


def test_errors_in_arguments_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("ci github --bogus", "local fault add", "local up --port 0"):
        command = words.partition(" -")[0]
        assert envelope(capsys, *words.split())["command"] == command
    answer = envelope(capsys, "run", "train.py", "--steps", "3")
    assert (answer["command"], answer["exit_code"]) == ("run", 2)
    assert " -- " in answer["diagnostics"][0]["hint"]
    assert run(["check", os.fsdecode(b"caf\xe9.py")]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_home_folder_is_not_uploaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tpuctl.yaml").write_text(MINIMAL, "utf-8")
    script = tmp_path / "train.py"
    script.write_text("", "utf-8")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # the script's folder contains it
    assert run(["check", "train.py"]) == 65
    assert str(tmp_path) in capsys.readouterr().err
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert run(["check", "train.py"]) == 0


def test_unknown_pace_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path / "local"))
    assert run(["local", "up", "--pace", "warp"]) == 2
    assert not (tmp_path / "local").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "x" * 300])
def test_invalid_state_folder_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path / place))
    assert run(["local", "up"]) == 1
    assert "TPUCTL_LOCAL_HOME" in capsys.readouterr().err


def test_init_never_overwrites(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["init", "--project", "my-project", "--name", "bert"]) == 0
    assert run(["check"]) == 0
    written = (tmp_path / "tpuctl.yaml").read_text("utf-8")
    assert run(["init", "--project", "other-project"]) == 1
    assert (tmp_path / "tpuctl.yaml").read_text("utf-8") == written
    assert "tpuctl.yaml exists" in capsys.readouterr().err


def test_init_prints_folder_instead_of_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--project", "my-project"]) == 0
    lines = capsys.readouterr().out.splitlines()
    files = [path for path in Path("bert-pretraining").rglob("*") if path.is_file()]
    assert lines[:2] == ["tpuctl.yaml", f"bert-pretraining/  {len(files)} files"]
    assert "    tpuctl run bert-pretraining/pretrain.py" in lines


def test_init_adds_job_to_stack_without_project(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["init", "--project", "my-project"]) == 0
    written = (tmp_path / "tpuctl.yaml").read_text("utf-8")
    capsys.readouterr()
    assert run(["init", "korean-messages"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "korean-messages/  1 file",
        "",
        "Next:",
        "    python korean-messages/messages.py collect",
    ]
    assert (tmp_path / "tpuctl.yaml").read_text("utf-8") == written
    assert run(["init", "korean-messages"]) == 1
    error = capsys.readouterr().err
    assert "korean-messages exists" in error
    assert "tpuctl up" not in error
    answer = envelope(capsys, "init", "korean-messages", "--folder", "other folder")
    assert answer["data"] == {"files": ["other folder/korean-messages/messages.py"]}


def test_template_list_has_descriptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    templates = dict(line.strip().split(maxsplit=1) for line in lines[: lines.index("")])
    assert list(templates) == assets.template_names()
    assert all(text.startswith("For ") for text in templates.values())
    assert run(["init", "kears", "--project", "my-project"]) == 2
    assert "Did you mean keras?" in capsys.readouterr().err


def test_suggested_script_exists(tmp_path: Path) -> None:
    stack_file = Path("tpuctl.yaml")
    assert guess_script(stack_file) == "SCRIPT"
    for place in ("my job/train.py", "train.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("", "utf-8")
        assert guess_script(stack_file) == shlex.quote(place)
    (tmp_path / "train.py").unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pretrain.py").write_text("", "utf-8")
    assert guess_script(stack_file) == "SCRIPT"  # ambiguous


def test_only_script_next_to_the_stack_file_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "my model.py").write_text("", "utf-8")
    assert guess_script(Path("tpuctl.yaml")) == "'my model.py'"
    (tmp_path / "utilities.py").write_text("", "utf-8")
    assert guess_script(Path("tpuctl.yaml")) == "SCRIPT"


def test_init_in_other_folder_suggests_commands_for_current_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "새 폴더"
    assert run(["init", "--project", "my-project", "--folder", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    typed = next(line.strip() for line in lines if " run " in line)
    program, _, rest = typed.partition(" ")
    assert program == "tpuctl"
    words = subprocess.run(
        f"printf '%s\\0' {rest}", shell=True, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    assert Path(words[words.index("--stack-file") + 1]) == folder / "tpuctl.yaml"
    assert Path(words[words.index("run") + 1]).is_file()


def test_interrupted_command_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(home: Path) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("tpuctl.local_cloud.server_process.status", interrupt)
    answer = envelope(capsys, "local", "status")
    assert (answer["status"], answer["exit_code"]) == ("failed", 130)
    assert [diagnostic["summary"] for diagnostic in answer["diagnostics"]] == ["Interrupted"]


def test_bug_is_reported_as_internal_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(home: Path) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("tpuctl.local_cloud.server_process.status", fail)
    answer = envelope(capsys, "local", "status")
    assert (answer["status"], answer["exit_code"]) == ("failed", 70)
    assert run(["local", "status"]) == 70
    err = capsys.readouterr().err
    assert "bug in tpuctl" in err
    assert "Traceback" not in err
    assert run(["local", "status", "--verbose"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "template", ["bert-pretraining", "empty", "jax", "keras", "slice", "torch", "tpu-node"]
)
def test_template_files_pass_checks(
    template: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["init", template, "--project", "my-project"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert run(["check"]) == 0
    typed = [line.strip() for line in lines if line.startswith("    tpuctl ")]
    assert [line.split()[1] for line in typed] == ["doctor", "up", "run", "down"]
    script = typed[2].removeprefix("tpuctl run ")
    if script != "SCRIPT":
        capsys.readouterr()
        assert run(["--json", "check", script]) == 0
        assert json.loads(capsys.readouterr().out)["data"]["findings"] == []
