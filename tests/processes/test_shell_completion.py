"""Completions as shown by real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.completions import JOBS, enter_stack_folder, learn
from tests.support.terminal import Terminal
from tpuctl.catalog import zones
from tpuctl.cli.tab_completion import LINE_VARIABLE, SHELL_VARIABLE

AT_TERMINAL = (
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
)
PROMPT = "\x1b[?2004h"  # the shell accepts input from here on
# Completes like tpuctl; otherwise prints its arguments.
PROGRAM = """#!/bin/sh
if [ -n "$_TPUCTL_COMPLETE" ]; then exec {0} -m tpuctl; fi
printf '<%s>' "$@"
"""
KEPT = ("TPUCTL_CONFIG_HOME", "PYTHONPATH")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_stack_folder(tmp_path, monkeypatch)


def completed(shell: str, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tpuctl"],
        env={**os.environ, SHELL_VARIABLE: shell, LINE_VARIABLE: line, **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_completion_prints_no_errors_and_imports_little() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tpuctl"],
        env={**os.environ, SHELL_VARIABLE: "fish", LINE_VARIABLE: "tpuctl logs "},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert loaded.isdisjoint({"google", "grpc", "asyncssh", "aiohttp", "yaml", "pydantic", "rich"})
    broken = completed("bash", "", COMP_WORDS="tpuctl x", COMP_CWORD="no number")
    assert (broken.stdout, broken.stderr) == ("", "")


def shortest_prefix(word: str, names: list[str]) -> str:
    starts = (word[:end] for end in range(1, len(word) + 1))
    return next(start for start in starts if sum(name.startswith(start) for name in names) == 1)


@pytest.mark.parametrize(
    "shell",
    ["bash", *(pytest.param(other, marks=pytest.mark.soak) for other in ("zsh", "fish"))],
)
def test_tab_completes_in_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        assert shell != "bash"
        pytest.skip(f"{shell} is not installed")
    learn(JOBS[0])
    home, programs = tmp_path / "home", tmp_path / "bin"
    for folder in (home, programs):
        folder.mkdir()
    stand_in = programs / "tpuctl"
    stand_in.write_text(PROGRAM.format(sys.executable), "utf-8")
    stand_in.chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if name in KEPT},
        "HOME": str(home),
        "PATH": f"{programs}:/usr/bin:/bin",
        "TERM": "xterm",
        "PS1": "$ ",
        "LANG": "C.UTF-8",
        "SHELL": shutil.which(shell) or shell,
        "COLUMNS": "200",
    }
    for _ in range(2):  # idempotent
        done = subprocess.run(
            [shell, "-c", f"{sys.executable} -m tpuctl --install-completion; true"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"Installed {shell} completion" in done.stdout, (
            "the shell is found among the parent processes"
        )
    zone = zones()[0]
    start = shortest_prefix(zone, list(zones()))
    lines = {
        "tpuctl stat": "<status>",
        f"tpuctl types --zone {start}": f"<--zone><{zone}>",
        "tpuctl logs 2026": f"<logs><{JOBS[0]}>",
        "tpuctl run tr": "<run><train.py>",
    }
    if shell == "bash":
        lines |= {
            f"tpuctl types --zone={start}": f"<--zone={zone}>",
            "tpuctl types --zo": "<types><--zone>",
            "tpuctl rehearse --type v5litepod-6": "<--type><v5litepod-64>",
            "tpuctl down --stack be": "<down><--stack><bert>",
        }
    Path("train.py").write_text("", "utf-8")
    program = (*AT_TERMINAL, shell, "-i")
    with Terminal(Path(), program=program, environment=environment) as terminal:
        for number, (typed, expected) in enumerate(lines.items(), 1):
            terminal.wait_for(PROMPT, times=number)
            terminal.type(f"{typed}\t\r")
            terminal.wait_for(expected)
        assert "rror" not in terminal.output
