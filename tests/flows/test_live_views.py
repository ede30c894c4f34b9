"""Output on wide, narrow and dumb terminals, in files and without color."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import succeed
from tests.support.forked_cli import forked_tpuctl
from tests.support.screen import Screen
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control, server_process

MakeStack = Callable[..., Tpuctl]
COLORS = re.compile(r"\x1b\[[0-9;]*3[0-7]m|\x1b\[(?:[0-9;]*;)?3[0-7](?:;[0-9;]*)?m")
TERMINAL_VARIABLES = ("COLUMNS", "LINES", "NO_COLOR")  # set by the tests' terminals
JOB = "import sys\nsys.stdout.buffer.write(b'one\\n\\xff two\\x1b[1A\\r\\nthree')\n"


class SizedTerminal:
    """tpuctl in a terminal of a given size."""

    def __init__(self, folder: Path, columns: int, rows: int, out: Path | None = None) -> None:
        self.folder, self.columns, self.rows, self.out = folder, columns, rows, out

    def run(self, *arguments: str, **environment: str) -> Terminal:
        to_file = f' > "{self.out}"' if self.out is not None else ""
        line = f'stty cols {self.columns} rows {self.rows}; exec "$@"{to_file}'
        variables = {
            name: value for name, value in os.environ.items() if name not in TERMINAL_VARIABLES
        }
        return Terminal(
            self.folder,
            *("-c", line, "sh", forked_tpuctl(), *arguments),
            program=("sh",),
            environment=variables | {"TERM": "xterm-256color"} | environment,
        )

    def screen(self, terminal: Terminal) -> Screen:
        screen = Screen(self.columns, self.rows)
        screen.feed(terminal.output)
        return screen


@pytest.fixture(scope="module")
def folder(
    local_cloud: server_process.LocalCloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A folder with a stack file and a job; the tests bring the stack up and down."""
    folder = tmp_path_factory.mktemp("views")
    (folder / "tpuctl.yaml").write_text(
        "stack: views\nproject: {id: local-project}\n"
        "tpu: {type: v2-8, runtime: tpu-ubuntu2204-base, zones: [us-central1-b]}\n",
        "utf-8",
    )
    (folder / "job").mkdir()
    (folder / "job" / "train.py").write_text(JOB, "utf-8")
    yield folder
    run_piped(folder, "down", "--yes", "--delete-bucket")


def run_piped(folder: Path, *arguments: str, **environment: str) -> tuple[str, str]:
    done = succeed(
        [forked_tpuctl(), *arguments], cwd=folder, env=os.environ | environment, timeout=120
    )
    return done.stdout, done.stderr


@pytest.mark.soak
def test_up_and_down_output_on_various_terminals(folder: Path) -> None:
    """On a wide terminal with colors, a narrow one without, a dumb one, and through a pipe."""
    wide = SizedTerminal(folder, 80, 24)
    with wide.run("up", "--yes") as terminal:
        assert terminal.end() == 0
        screen = wide.screen(terminal)
    text = "\n".join(screen.lines)
    assert screen.modes == []
    assert screen.colors
    assert max(map(len, screen.lines)) <= 80
    for address in ("node/views-tpu", "ssh/workers", "ssh/watchdog"):
        assert sum(f"✓ {address} " in line for line in screen.lines) == 1, text
    assert "in progress" not in text
    assert "waits for" not in text
    assert "    tpuctl run job/train.py" in screen.lines

    narrow = SizedTerminal(folder, 40, 12)
    with narrow.run("down", "--yes", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
        screen = narrow.screen(terminal)
    text = "\n".join(screen.lines)
    assert not COLORS.search(terminal.output)
    assert any("✓ node/views-" in line and "deleted" in line for line in screen.lines), text
    assert "down --delete-bucket" in text

    with wide.run("--no-color", "up", "--yes", TERM="dumb") as terminal:
        assert terminal.end() == 0
        assert "\x1b" not in terminal.output
        assert "create node/views-tpu: " in terminal.output

    out, stderr = run_piped(folder, "down", "--yes")
    assert "\x1b" not in out + stderr
    assert re.search(r"^\d+ to delete, \d+ unchanged$", stderr, re.M)
    assert re.search(r"^deleted node/views-tpu \(", stderr, re.M)
    assert run_piped(folder, "--quiet", "up", "--yes")[1] == ""


def test_run_writes_log_to_stdout_and_steps_to_terminal(folder: Path, tmp_path: Path) -> None:
    """The log goes to stdout byte for byte, the steps to the terminal."""
    run_piped(folder, "up", "--yes")
    file = SizedTerminal(folder, 80, 24, tmp_path / "log")
    with file.run("run", "job/train.py") as terminal:
        assert terminal.end() == 0
        lines = file.screen(terminal).lines
    assert (tmp_path / "log").read_bytes() == b"one\n\xff two\x1b[1A\r\nthree"
    phases = ("check", "stack", "bundle", "upload", "start", "log")
    at = [next(i for i, line in enumerate(lines) if f"✓ {phase} " in line) for phase in phases]
    assert at == sorted(at)
    assert lines[-1].startswith("    tpuctl jobs show ")


@pytest.mark.soak
def test_ctrl_c_during_up_restores_terminal(
    folder: Path, local_cloud: server_process.LocalCloud
) -> None:
    for command in ("up", "down"):  # afterwards only the node is left to create
        run_piped(folder, command, "--yes")
    wide = SizedTerminal(folder, 80, 24)
    remote_control.change_settings(local_cloud, pace="real")
    try:
        with wide.run("up", "--yes") as terminal:
            terminal.wait_for("CREATING")
            terminal.press_ctrl_c()
            assert terminal.end() == 130
            screen = wide.screen(terminal)
    finally:
        remote_control.change_settings(local_cloud, pace="instant")
        run_piped(folder, "down", "--yes")  # the cloud continues to create it at that pace
    text = "\n".join(screen.lines)
    assert screen.modes == []
    assert sum("node/views-tpu " in line for line in screen.lines) == 1, text
    assert any("! node/views-tpu" in line and "interrupted" in line for line in screen.lines)
    assert "error: Interrupted" in text
    assert screen.lines[-1].strip() == "tpuctl down"


@pytest.mark.soak
def test_status_watch_fits_terminal_and_ends_with_ctrl_c(folder: Path) -> None:
    small = SizedTerminal(folder, 60, 8)
    with small.run("status", "--watch", "--interval", "60") as terminal:
        terminal.wait_for("press Ctrl-C to stop")
        terminal.press_ctrl_c()
        assert terminal.end() == 0
        screen = small.screen(terminal)
    assert screen.modes == []
    assert sum(line.startswith("stack ") for line in screen.lines) == 1, screen.lines
    with small.run("status", "--watch", TERM="dumb") as terminal:
        terminal.wait_for("so far on Google\n")
        terminal.press_ctrl_c()
        assert terminal.end() == 0
        assert "\x1b" not in terminal.output
