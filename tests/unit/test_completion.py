"""Completions, as offered and as shown by real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.catalog import accelerator_types, zones
from tpuctl.cli.commands import COMMANDS
from tpuctl.cli.completion import name_history, tab
from tpuctl.cli.state import State

STACK = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-32, zones: [europe-west4-a]}\n"
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
JOBS = ("20261121-061400-amber", "20261122-101500-lark")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TPUCTL_CLOUD", "TPUCTL_STACK_FILE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "tpuctl.yaml").write_text(STACK, "utf-8")


def learn(*jobs: str, text: str = STACK, cloud: str = "google") -> None:
    """Record these jobs of this stack."""
    path = Path("seen.yaml")
    path.write_text(text, "utf-8")
    made = Tpuctl(path, cloud=cloud)
    assert made.stack.name
    path.unlink()
    name_history.remember(State(clients=[made]).stacks, jobs)


def words(line: str) -> list[str]:
    *before, incomplete = line.split(" ")
    return [candidate.word for candidate in tab.candidates_for(before, incomplete)]


def test_commands_and_subcommands_are_completed() -> None:
    assert words("") == list(COMMANDS)
    assert words("--json sta") == ["status"]
    assert words("local st") == ["status"]
    assert words("local fault a") == ["add"]
    assert words("help local fa") == ["fault"]
    assert words("init ke") == ["keras"]


def test_used_options_are_not_offered_again() -> None:
    assert words("logs --ta") == ["--tail"]
    assert words("logs --js") == ["--json"]
    assert words("logs --json --js") == []
    assert words("run --secret A --sec") == ["--secret"], "may be repeated"
    assert "--follow" in words("logs --tail 3 --")
    assert words("--clo") == ["--cloud"]


def test_option_values_are_completed_after_global_options() -> None:
    assert words("--cloud ") == ["google", "local"]
    assert words("types --cloud l") == ["local"]
    assert words("--cloud=l") == ["--cloud=local"]
    assert words("rehearse --type v5litepod-6") == ["v5litepod-64"]
    assert words("--cloud local rehearse --json --type v5litepod-6") == ["v5litepod-64"]
    assert words("forward --worker ") == ["0", "1", "2", "3"], "v3-32 has four"


def test_zones_are_limited_to_given_type() -> None:
    accelerator = accelerator_types()["v3-8"]
    assert set(words("types --zone ")) == set(zones())
    assert set(words("prices v3-8 --zone ")) in ({*accelerator.zones}, {*zones()})


def test_remembered_jobs_are_offered_newest_first() -> None:
    assert words("logs ") == []
    learn(JOBS[0])
    learn(JOBS[1], JOBS[0])
    assert words("logs ") == [JOBS[1], JOBS[0]]
    assert words("stop 20261121") == [JOBS[0]]
    assert words("logs am") == ["amber"], "the last word of an ID suffices"
    assert words("--cloud local logs ") == [], "another cloud has others"


def test_jobs_of_other_stacks_are_not_offered() -> None:
    learn(JOBS[0], text=STACK.replace("bert", "gpt"))
    assert words("logs ") == []
    assert words("down --stack g") == ["gpt"]


def test_stacks_of_nearby_files_and_history_are_offered() -> None:
    other = Path("other")
    other.mkdir()
    (other / "tpuctl.yaml").write_text(
        "# stack: not-this\nstack: 'keras'\nproject:\n  create: true\n  id: elsewhere\n", "utf-8"
    )
    learn(JOBS[0], text=STACK.replace("bert", "gpt"))
    assert set(words("status --stack ")) == {"bert", "keras", "gpt"}
    assert words("status --stack keras --project ") == ["elsewhere"]


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"[]", b'{"version": 1}', b"null"])
def test_damaged_history_is_ignored(damage: bytes) -> None:
    path = name_history.history_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    Path("tpuctl.yaml").write_bytes(b"\xff\xfe: [")
    assert words("logs ") == []
    assert words("status --stack ") == []
    learn(JOBS[0])
    Path("tpuctl.yaml").write_text(STACK, "utf-8")
    assert words("logs ") == [JOBS[0]]


def test_unwritable_history_is_ignored() -> None:
    name_history.history_file().parent.parent.mkdir(parents=True)
    name_history.history_file().parent.write_text("", "utf-8")
    learn(JOBS[0])
    assert words("logs ") == []


@pytest.mark.parametrize(
    "line", ["nonesuch ", "logs --nonesuch ", "run a.py -- --z", "local nonesuch x", "cp 0:", "'"]
)
def test_no_candidates_print_nothing(line: str) -> None:
    assert words(line) == []


def completed(shell: str, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tpuctl"],
        env={**os.environ, tab.SHELL_VARIABLE: shell, tab.LINE_VARIABLE: line, **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_completion_prints_no_errors_and_imports_little() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tpuctl"],
        env={**os.environ, tab.SHELL_VARIABLE: "fish", tab.LINE_VARIABLE: "tpuctl logs "},
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
