"""The output of `local env`, evaluated by shells."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.support.properties import given, settings
from tpuctl.cli.local.env import Shell, lines_for
from tpuctl.cli.main import run
from tpuctl.shell_record import RECORD, original_environment, restore_variables

HARD = {
    "PLAIN": "http://127.0.0.1:80/t/x",
    "SPACES": "two  words\tand\na line",
    "QUOTES": """it's "so" `date` $HOME ${HOME} \\ \\' !! %s ~ * ; #""",
    "EMPTY": "",
    "KOREAN": "텐서",
    "LIST": "a:b:c",
}


@pytest.mark.parametrize("shell", list(Shell))
def test_shells_read_values_unchanged(shell: Shell) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    lines = lines_for(shell, {**HARD, "GONE": None, "NEVER": None})
    script = "".join(lines) + "env -0"
    bare = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [program, *bare, "-c", script],
        env={"PATH": "/usr/bin:/bin", "HOME": "/dev/null", "GONE": "here"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    found = dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if line)
    assert {name: found.get(name) for name in HARD} == HARD
    assert "GONE" not in found


@pytest.mark.parametrize("shell", [Shell.bash, Shell.fish])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
@settings(max_examples=8)
def test_shells_read_any_values(shell: Shell, values: list[str]) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    expected = {f"V{number}": value for number, value in enumerate(values)}
    done = subprocess.run(
        [program, "-c", "".join(lines_for(shell, expected)) + "env -0"],
        env={"PATH": "/usr/bin:/bin", "HOME": "/dev/null", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    read = dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if line)
    assert {name: read.get(name) for name in expected} == expected


def test_joined_lines_have_the_same_effect() -> None:
    """`eval $(tpuctl local env)` without quotes joins them into one line."""
    joined = " ".join("".join(lines_for(Shell.bash, {"A": "1", "B": None, "C": "3"})).split())
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{joined} echo $A-$B-$C"],
        env={"PATH": "/usr/bin:/bin", "B": "here"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1--3\n"


def test_record_restores_environment() -> None:
    record = json.dumps({"A": "before", "B": None})
    around = {"A": "now", "B": "now", "C": "always", RECORD: record}
    assert original_environment(around) == {"A": "before", "C": "always"}
    assert restore_variables(around) == {"A": "before", "B": None, RECORD: None}
    assert restore_variables({"A": "now"}) == {}
    assert restore_variables({RECORD: "no JSON"}) == {RECORD: None}


def test_unsupported_shell_is_rejected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpuctl.cli.completion.shells.parent_shell", lambda: "tcsh")
    monkeypatch.setenv("SHELL", "/bin/bash")
    assert run(["local", "env"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "false;\n"  # stops a script that evaluates it under `set -e`
    assert "tcsh" in captured.err
    assert "--shell bash|zsh|fish" in captured.err


@pytest.mark.parametrize(("shell", "login"), [("fish", "/bin/bash"), ("bash", "/usr/bin/fish")])
def test_shell_in_use_decides(shell: str, login: str, tmp_path: Path) -> None:
    """docker-archive-public/docker.machine#4825: $SHELL is the login shell."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    tpuctl = f"{sys.executable} -m tpuctl local env --unset"
    script = f"{tpuctl} | source; env -0" if shell == "fish" else f'eval "$({tpuctl})"; env -0'
    record = json.dumps({"https_proxy": None, "A": "a'b"})
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SHELL": login, RECORD: record}
    done = subprocess.run(
        [shell, "-c", script],
        env={**variables, "https_proxy": "http://127.0.0.1:1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    left = dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if line)
    assert left["A"] == "a'b"
    assert not left.keys() & {"https_proxy", RECORD}


def test_shell_of_the_local_cloud_is_told_from_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RECORD, raising=False)
    assert run(["local", "env", "--unset"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "does not point at the local cloud" in captured.err
    monkeypatch.setenv(RECORD, "{}")
    assert run(["--cloud", "google", "orphans", "--project", "my-project"]) == 2
    assert "tpuctl local env --unset" in capsys.readouterr().err


def test_down_mentions_configured_shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path))
    assert run(["local", "down"]) == 0
    assert "still pointed" not in capsys.readouterr().err
    monkeypatch.setenv(RECORD, "{}")
    assert run(["local", "down"]) == 0
    assert "tpuctl local env --unset" in capsys.readouterr().err
