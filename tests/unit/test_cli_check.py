"""`tpuctl check` with all kinds of arguments."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tpuctl.cli.main import run

STACK = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8}\n"
NODE = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8, kind: node, runtime: 2.12.0}\n"
GOOD = "print('nothing here is for a TPU')\n"
BROKEN = "x = 1\nif x\n    pass\n"
COSTLY = """import tensorflow as tf

data = tf.data.Dataset.range(100)
data = data.batch(8)
"""
FAILS = """import tensorflow as tf


@tf.function(autograph=False)
def step(x):
    if tf.reduce_sum(x) > 10.0:
        return x
    return -x
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    names = ("TPUCTL_CLOUD", "TPUCTL_JSON", "TPUCTL_STACK_FILE", "TPUCTL_YES", "GITHUB_WORKSPACE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


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
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], summary: str
) -> None:
    (here / "tpuctl.yaml").write_text(STACK, "utf-8")
    startup = STACK.replace("v3-8}", f"v3-8, startup_script: '{TEXT}'}}")
    (here / "startup.yaml").write_text(startup, "utf-8")
    problem = envelope(capsys, *arguments)["diagnostics"][0]
    assert (problem["summary"], "TPUCTL_LOCAL_HOME" in str(problem)) == (summary, False)


@pytest.mark.parametrize("kind", ["pipe", "loop"])
def test_pipe_is_rejected_without_blocking(
    here: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    if kind == "pipe":
        os.mkfifo(here / "train.py")
    else:
        (here / "train.py").symlink_to("train.py")
    (here / "tpuctl.yaml").write_text(STACK, "utf-8")
    for command in (["check"], ["run"], ["run", "--"], ["rehearse"]):
        assert run([*command, "./train.py"]) == 2
        assert "train.py" in capsys.readouterr().err
    if kind == "pipe":
        write(here, other=GOOD)
        assert run(["check", "."]) == 0
        assert "in 1 file" in capsys.readouterr().out


# Findings -----------------------------------------------------------------------------------


def test_clean_script_prints_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train=GOOD)
    assert run(["check", "train.py"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    (line,) = captured.out.splitlines()
    assert "Nothing found in 1 file" in line
    assert "no tpuctl.yaml" in line


def test_only_errors_change_exit_code(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, costly=COSTLY, fails=FAILS)
    assert run(["check", "costly.py"]) == 0
    assert "costly.py:4:" in capsys.readouterr().out
    assert run(["check", "fails.py"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("fails.py:6:")
    assert " TPU001 error " in out
    assert "1 error in 1 file" in out


def test_target_comes_from_stack_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train=GOOD)
    (here / "tpuctl.yaml").write_text(STACK, "utf-8")
    assert run(["check", "train.py"]) == 0
    assert "a TPU VM v3-8 with TensorFlow" in capsys.readouterr().out
    (here / "tpuctl.yaml").write_text(NODE, "utf-8")
    assert run(["check", "train.py"]) == 0
    assert "a TPU node v3-8 with TensorFlow 2.12.0" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "run"])
def test_wheels_of_another_architecture_are_rejected(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    write(here, train=GOOD)
    (here / "tpuctl.yaml").write_text(STACK.replace("v3-8", "v6e-8"), "utf-8")
    (here / "wheels").mkdir()
    (here / "wheels/numpy-2.3.0-cp310-cp310-manylinux_2_28_aarch64.whl").touch()
    answer = envelope(capsys, "--cloud", "google", command, "train.py")
    (refused,) = answer["diagnostics"]
    assert refused["summary"] == "Wheels for another architecture"
    assert "which run Linux on x86_64" in refused["detail"]
    assert answer["exit_code"] == 65
    (here / "wheels/numpy-2.3.0-cp310-cp310-manylinux_2_28_x86_64.whl").touch()
    assert run(["check", "train.py"]) == 0


def test_node_rules_apply_to_nodes_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        here, train="import tensorflow as tf\n\ndata = tf.data.TFRecordDataset('data/a.tfrecord')\n"
    )
    assert run(["check", "train.py", "--select", "TPU3"]) == 0
    assert "TPU301" not in capsys.readouterr().out
    (here / "tpuctl.yaml").write_text(NODE, "utf-8")
    assert run(["check", "train.py", "--select", "TPU3"]) == 1
    assert "train.py:3:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--stack-file", "absent.yaml"], ["--stack-file=absent.yaml"]]
)
def test_named_stack_file_must_exist(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    write(here, train=GOOD)
    assert run(["check", "train.py", *arguments]) == 2
    assert "absent.yaml" in capsys.readouterr().err


def test_stack_file_from_environment_must_exist(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, train=GOOD)
    monkeypatch.setenv("TPUCTL_STACK_FILE", "absent.yaml")
    assert run(["check", "train.py"]) == 2
    assert "absent.yaml" in capsys.readouterr().err


def test_invalid_stack_file_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train=GOOD)
    (here / "tpuctl.yaml").write_text("stack: bert\nproject: {id: my-project}\n", "utf-8")
    assert run(["check", "train.py"]) == 2
    assert "tpuctl.yaml" in capsys.readouterr().err


# Checked files ------------------------------------------------------------------------------


def test_imports_are_followed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = here / "package"
    package.mkdir()
    write(here, train="def main():\n    from package import parts\n")
    write(package, __init__="", parts=BROKEN)
    assert run(["check", "train.py"]) == 1
    assert f"{Path('package/parts.py')}:2:1 TPU000 error" in capsys.readouterr().out


def test_findings_of_several_scripts_are_not_repeated(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, one="import parts\n", two="import parts\n", parts=BROKEN)
    assert run(["check", "one.py", "two.py"]) == 1
    out = capsys.readouterr().out
    assert out.count("TPU000") == 1
    assert "in 3 files" in out


def test_folder_checks_all_files_in_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment, hidden, package = here / "env", here / ".hidden", here / "src" / "package"
    for folder in (environment, hidden, package):
        folder.mkdir(parents=True)
        write(folder, broken=BROKEN)
    (environment / "pyvenv.cfg").write_text("", "utf-8")
    write(here, train=GOOD)
    assert run(["check", "."]) == 1
    out = capsys.readouterr().out
    assert out.count("TPU000") == 1
    assert "src/package/broken.py:2" in out


def test_module_argument(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = here / "package"
    package.mkdir()
    write(package, __init__="", train="from package import parts\n", parts=BROKEN)
    assert run(["check", "-m", "package.train"]) == 1
    assert "package/parts.py:2" in capsys.readouterr().out
    assert run(["check", "-m", "package.trian"]) == 2
    assert "package.train?" in capsys.readouterr().err
    assert run(["check", "-m", "json.tool"]) == 2
    assert "is not in this folder" in capsys.readouterr().err


def test_paths_are_relative_to_current_folder(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    below = here / "below"
    below.mkdir()
    write(here, train=BROKEN)
    monkeypatch.chdir(below)
    assert run(["check", "../train.py"]) == 1
    assert capsys.readouterr().out.startswith("../train.py:2:1 ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.py"], "absent.py does not exist"),
        (["train.py", "absent.py"], "absent.py does not exist"),
        (["notes.ipynb"], "notebook"),
        (["broken-link.py"], "is a broken link"),
        (["/dev/null"], "neither a file nor a folder"),
        (["train.py", "-m", "train"], "Conflicting options"),
        (["train.py", "--json", "--format", "sarif"], "Conflicting options"),
        (["train.py", "--explain", "TPU101"], "Conflicting options"),
        (["--fix"], "Nothing to check"),
        (["--format", "sarif"], "Nothing to check"),
        (["empty"], "no Python files in empty"),
        (["--explain", "TPU999"], "Unknown rule"),
        (["--explain", ""], "Unknown rule"),
        (["train.py", "--select", "TPU100,XYZ"], "Unknown rule"),
        (["train.py", "--ignore", ","], "--ignore"),
        (["train.py", "--format", "xml"], "xml"),
        (["-m", "train.py"], "Invalid module name"),
    ],
)
def test_mistyped_arguments_are_explained(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    write(here, train=GOOD)
    (here / "notes.ipynb").write_text("{}", "utf-8")
    (here / "empty").mkdir()
    (here / "broken-link.py").symlink_to("nowhere.py")
    assert run(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.out + captured.err
    assert "Traceback" not in captured.err


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
    ids=[
        "bytes",
        "null",
        "unknown",
        "korean",
        "windows",
        "empty",
        "escape",
        "deep",
        "long",
        "bash",
    ],
)
def test_files_of_every_kind(
    here: Path, capsys: pytest.CaptureFixture[str], data: bytes, words: str
) -> None:
    (here / "train.py").write_bytes(data)
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
    here: Path, capsys: pytest.CaptureFixture[str], framework: str, target: str
) -> None:
    write(here, train=f"import {framework}\n")
    assert target in envelope(capsys, "check", "train.py")["data"]["target"]
