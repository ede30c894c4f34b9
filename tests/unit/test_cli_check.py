"""`tpuctl check` with all kinds of files, its output, and what `run` does with findings."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tpuctl.api import Tpuctl
from tpuctl.cli.main import run
from tpuctl.errors import Refused
from tpuctl.model.events import Event, WarningIssued

STACK = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8}\n"
GOOD = "print('nothing here is for a TPU')\n"
BROKEN = "x = 1\nif x\n    pass\n"
COSTLY = """import tensorflow as tf

data = tf.data.Dataset.range(100)
data = data.batch(8)
"""
RISKY = """import tensorflow as tf


@tf.function(jit_compile=True, reduce_retracing=True)
def step(x):
    return x * 2
"""
FIXED = RISKY.replace("jit_compile=True, ", "")
LINE_END = "\n"
FAILS = """import tensorflow as tf


@tf.function(autograph=False)
def step(x):
    if tf.reduce_sum(x) > 10.0:
        return x
    return -x
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, "utf-8")


def envelope(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = run([*arguments, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == code
    return answer


TEXT = "a message, not a path: " * 200


@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        (["check", TEXT], "Script not found"),
        (["run", TEXT], "Script not found"),
        (["rehearse", TEXT], "Script not found"),
        (["ci", "github", TEXT], "Script not found"),
        (["notebook", TEXT], "Folder not found"),
        (["init", "--project", "my-project", "--folder", TEXT], "Not the path of a file or folder"),
        (["--stack-file", "startup.yaml", "plan"], "No such file"),
        (["explain", "--error", TEXT], "Unknown error message"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_long_text_in_place_of_a_path(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], summary: str
) -> None:
    (empty_folder / "tpuctl.yaml").write_text(STACK, "utf-8")
    startup = STACK.replace("v3-8}", f"v3-8, startup_script: '{TEXT}'}}")
    (empty_folder / "startup.yaml").write_text(startup, "utf-8")
    problem = envelope(capsys, *arguments)["diagnostics"][0]
    assert (problem["summary"], "TPUCTL_LOCAL_HOME" in str(problem)) == (summary, False)


@pytest.mark.parametrize("kind", ["pipe", "loop"])
def test_pipe_is_rejected_without_blocking(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    if kind == "pipe":
        os.mkfifo(empty_folder / "train.py")
    else:
        (empty_folder / "train.py").symlink_to("train.py")
    (empty_folder / "tpuctl.yaml").write_text(STACK, "utf-8")
    for command in (["check"], ["run"], ["run", "--"], ["rehearse"]):
        assert run([*command, "./train.py"]) == 2
        assert "train.py" in capsys.readouterr().err
    if kind == "pipe":
        write(empty_folder, other=GOOD)
        assert run(["check", "."]) == 0
        assert "in 1 file" in capsys.readouterr().out


# Findings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "run"])
def test_wheels_of_another_architecture_are_rejected(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    write(empty_folder, train=GOOD)
    (empty_folder / "tpuctl.yaml").write_text(STACK.replace("v3-8", "v6e-8"), "utf-8")
    (empty_folder / "wheels").mkdir()
    (empty_folder / "wheels/numpy-2.3.0-cp310-cp310-manylinux_2_28_aarch64.whl").touch()
    answer = envelope(capsys, "--cloud", "google", command, "train.py")
    (refused,) = answer["diagnostics"]
    assert refused["summary"] == "Wheels for another architecture"
    assert "which run Linux on x86_64" in refused["detail"]
    assert answer["exit_code"] == 65
    (empty_folder / "wheels/numpy-2.3.0-cp310-cp310-manylinux_2_28_x86_64.whl").touch()
    assert run(["check", "train.py"]) == 0


# Checked files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x = '\xff\xfe'\n", "TPU000"),
        (b"x = 1\0\n", "TPU000"),
        (b"# coding: nonesuch\nx = 1\n", "TPU000"),
        (b"# coding: euc-kr\nx = '\xc7\xd1'\n", "Nothing found"),
        (b"\xef\xbb\xbfx = 1\r\nif x:\r\n\tpass\r\n", "Nothing found"),
        (b"", "Nothing found"),
        (b"x = '\\d'\n", "Nothing found"),
        (b"x = " + b"(" * 500 + b")" * 500, "TPU000"),
        (b"x = " + b"-" * 50_000 + b"1\n", "TPU000"),
        (b"#!/bin/bash\necho $((1+1\n", "an interpreter other than Python"),
    ],
    ids=lambda value: ascii(value[:20]),
)
def test_files_of_every_kind(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], data: bytes, words: str
) -> None:
    (empty_folder / "train.py").write_bytes(data)
    assert run(["check", "train.py"]) == (1 if words == "TPU000" else 0)
    captured = capsys.readouterr()
    assert words in captured.out
    assert captured.err == ""
    assert "Errno" not in captured.out


@pytest.mark.parametrize(
    ("framework", "target"),
    [("jax", "a TPU VM, as"), ("torch_xla", "a TPU VM, as"), ("tensorflow", "with TensorFlow 2.")],
)
def test_target_names_tensorflow_only_for_its_scripts(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], framework: str, target: str
) -> None:
    write(empty_folder, train=f"import {framework}\n")
    assert target in envelope(capsys, "check", "train.py")["data"]["target"]


# Output -----------------------------------------------------------------------------------


def test_json_envelope_has_findings(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(empty_folder, train=FAILS)
    (empty_folder / "tpuctl.yaml").write_text(STACK, "utf-8")
    answer = envelope(capsys, "check", "train.py")
    assert (answer["status"], answer["exit_code"]) == ("failed", 1)
    (finding,) = answer["data"]["findings"]
    assert (finding["code"], finding["severity"], finding["line"]) == ("TPU001", "error", 6)
    assert Path(finding["file"]) == empty_folder / "train.py"
    assert answer["data"]["type"] == "v3-8"
    (diagnostic,) = answer["diagnostics"]
    assert diagnostic["summary"].startswith("TPU001 ")
    assert diagnostic["where"].startswith("train.py:6:")


def test_select_and_ignore_filter_rules(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(empty_folder, train=FAILS + COSTLY)
    codes = {
        (): {"TPU001", "TPU201"},
        ("--select", "TPU2"): {"TPU201"},
        ("--select", "tpu001, TPU201"): {"TPU001", "TPU201"},
        ("--select", "TPU001", "--select", "TPU2"): {"TPU001", "TPU201"},
        ("--ignore", "TPU001"): {"TPU201"},
        ("--select", "TPU", "--ignore", "TPU2"): {"TPU001"},
    }
    for options, expected in codes.items():
        answer = envelope(capsys, "check", "train.py", *options)
        assert {finding["code"] for finding in answer["data"]["findings"]} == expected, options


@pytest.mark.parametrize("format", ["github", "sarif"])
def test_stdout_has_only_the_selected_format(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], format: str
) -> None:
    write(empty_folder, train=BROKEN)
    assert run(["check", "train.py", "--format", format]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    if format == "github":
        assert captured.out.startswith("::error file=train.py,line=2,col=1,title=TPU000")
    else:
        (run_,) = json.loads(captured.out)["runs"]
        assert [result["ruleId"] for result in run_["results"]] == ["TPU000"]


# --fix --------------------------------------------------------------------------------------


# Before a job -------------------------------------------------------------------------------


def test_run_rejects_script_with_errors(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(empty_folder, train=FAILS + FAILS.replace("step", "other"))
    (empty_folder / "tpuctl.yaml").write_text(STACK, "utf-8")
    assert run(["run", "train.py"]) == 65
    err = capsys.readouterr().err
    assert "train.py:6:" in err
    assert f"train.py:{6 + FAILS.count(LINE_END)}:" in err, "all errors are reported together"
    assert "--no-check" in err
    assert "# tpuctl: ignore[TPU001]" in err


def test_run_summarizes_costs(empty_folder: Path) -> None:
    write(empty_folder, train=COSTLY)
    (empty_folder / "tpuctl.yaml").write_text(STACK, "utf-8")
    seen: list[Event] = []
    stack = Tpuctl("tpuctl.yaml", emit=seen.append)
    assert stack.submission("train.py").stack == "bert"
    (event,) = seen
    assert isinstance(event, WarningIssued)
    assert event.diagnostic.detail == "1 cost"
    assert "    tpuctl check train.py" in event.diagnostic.hint
    assert [finding.code for finding in stack.check("train.py").findings] == ["TPU201"]


def test_advice_comes_once_for_each_version_of_script(empty_folder: Path) -> None:
    (empty_folder / "tpuctl.yaml").write_text(STACK, "utf-8")
    for script, count in ((COSTLY, 1), (COSTLY, 0), (f"{COSTLY}\n", 1)):
        write(empty_folder, train=script)
        seen: list[Event] = []
        Tpuctl("tpuctl.yaml", emit=seen.append).submission("train.py")
        assert len(seen) == count


def test_no_check_skips_check(empty_folder: Path) -> None:
    write(empty_folder, train=FAILS)
    (empty_folder / "tpuctl.yaml").write_text(STACK, "utf-8")
    seen: list[Event] = []
    stack = Tpuctl("tpuctl.yaml", emit=seen.append)
    with pytest.raises(Refused):
        stack.submission("train.py")
    stack.submission("train.py", check=False)
    assert seen == []


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("words", "is_terminal", "is_shown"),
    [([], True, True), ([], False, False), (["--json"], True, False), (["--quiet"], True, False)],
)
def test_progress_is_shown_on_a_terminal_only_and_erased(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    is_terminal: bool,
    is_shown: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("tpuctl.view.checks.progress.DELAY_SECONDS", 0.0)
    (tmp_path / "train.py").write_text("print(1)\n", "utf-8")
    stream = _Terminal() if is_terminal else StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    assert run([*words, "check", "."]) == 0
    text = stream.getvalue()
    assert ("Checking 1 file: TPU801" in text) == is_shown
    assert not is_shown or text.rstrip("\r").endswith("\x1b[2K")


def test_a_quick_check_shows_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tpuctl.view.checks.progress.DELAY_SECONDS", 3600.0)
    (tmp_path / "train.py").write_text("print(1)\n", "utf-8")
    stream = _Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    assert run(["check", "."]) == 0
    assert "Checking" not in stream.getvalue()
