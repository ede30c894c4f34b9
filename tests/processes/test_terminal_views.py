"""The same events in each kind of terminal, file and pipe, in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.screen import Screen
from tests.support.terminal import Terminal

LIVE = {"PAUSE": "0.6"}
TERMINAL_VARIABLES = ("COLUMNS", "LINES", "LC_ALL", "NO_COLOR")  # set by the tests' terminals
# A stack of 64 nodes and an upload, shown by the default view. It pauses where a live view would
# show what is in progress.
STORY = """
import os, sys, time
from tpuctl.errors import Diagnostic
from tpuctl.model.events import *
from tpuctl.view import choose

flags = sys.argv[1:]
pause = float(os.environ.get("PAUSE", "0"))
view = choose(json="json" in flags, events=True, quiet="quiet" in flags, no_color="plain" in flags)
nodes = [f"node/stack-tpu-{number}" for number in range(64)]
view.on(Planned((
    PlannedStep("network/main", "nothing", "network default is there"),
    PlannedStep("bucket/b", "create"),
    *(PlannedStep(node, "create", "", ("bucket/b",)) for node in nodes),
)))
view.on(StepFinished("network/main", Outcome.UNCHANGED, 0.0, "network default is there"))
view.on(StepStarted("bucket/b", "create", "in us-central1"))
view.on(StepFinished("bucket/b", Outcome.DONE, 1.5))
for node in nodes:
    view.on(StepStarted(node, "create"))
    view.on(StepProgress(node, "CREATING"))
time.sleep(pause)
view.on(Note("a note on the way"))
for node in nodes[:-1]:
    view.on(StepFinished(node, Outcome.DONE, 12.0))
view.on(StepFinished(nodes[-1], Outcome.FAILED, 12.0, "no capacity"))
view.on(WarningIssued(Diagnostic("Careful", "with this", "Do\\n    tpuctl plan")))
view.on(Planned((PlannedStep("job/upload", "upload"),)))
view.on(StepStarted("job/upload", "upload"))
for done in (10_000_000, 20_000_000, 30_000_000):
    view.on(StepProgress("job/upload", "", done / 4e7, done, 40_000_000))
    time.sleep(pause)
view.on(StepFinished("job/upload", Outcome.DONE, 1.2, "40.0 MB to gs://b"))
if "interrupt" in flags:
    view.on(StepStarted("job/start", "start"))
    time.sleep(pause)
    view.on(StepFinished("job/start", Outcome.INTERRUPTED, 0.3))
    view.problems([Diagnostic("Interrupted", "nothing is left")])
view.close()
print("the answer", flush=True)
"""

# A job's log, with a pause in which a terminal shows what the job does.
LOG_STORY = """
import os, sys, time
from tpuctl.model.events import *
from tpuctl.view import choose

view = choose(json="json" in sys.argv, events=True, quiet=False, no_color=True)
view.expect_log()
time.sleep(0.6 * bool(os.environ.get("PAUSE")))
offset = 0
for data, seconds in (
    (b"tpuctl: installing requirements.txt\\n", 1),
    (b"starting: ", 0.6), (b"step 1 loss 2.5\\n", 0.6), (b"step 2 loss 1.5\\n", 0),
):
    view.on(LogChunk(0, data, offset))
    offset += len(data)
    time.sleep(seconds * bool(os.environ.get("PAUSE")))
view.on(Note("a note after it"))
view.on(JobEnded("job", "succeeded", 0, True))
view.close()
print("the answer", flush=True)
"""


def run_in_terminal(
    folder: Path,
    columns: int,
    rows: int,
    *flags: str,
    story: str = STORY,
    elsewhere: str = "",
    **environment: str,
) -> Terminal:
    environment_variables = {
        name: value for name, value in os.environ.items() if name not in TERMINAL_VARIABLES
    }
    line = f'stty cols {columns} rows {rows}; exec "$@" {elsewhere}'
    with Terminal(
        folder,
        *("-c", line, "sh", sys.executable, "-c", story, *flags),
        program=("sh",),
        environment=environment_variables
        | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        | environment,
    ) as terminal:
        assert terminal.end() == 0, terminal.output
    return terminal


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 12)])
@pytest.mark.parametrize("flags", [(), ("plain", "interrupt")])
def test_terminal_keeps_finished_tree(
    tmp_path: Path, columns: int, rows: int, flags: tuple[str, ...]
) -> None:
    terminal = run_in_terminal(tmp_path, columns, rows, *flags, **LIVE)
    screen = Screen(columns, rows)
    screen.feed(terminal.output)
    lines = screen.lines
    assert screen.modes == []  # neither a hidden cursor nor an alternate screen
    assert bool(screen.colors & {"31", "32", "35"}) == (not flags)
    assert sum("bucket/b" in line and "created" in line for line in lines) <= 1
    assert sum("✗ node/" in line and "tpu-63 " in line for line in lines) == 1
    assert sum("63 done" in line for line in lines) == 1
    assert sum("a note on the way" in line for line in lines) == 1
    assert sum("warning: Careful" in line for line in lines) == 1
    assert not any("CREATING" in line or "in progress" in line for line in lines), lines
    assert sum("✓ upload" in line and "40.0 MB" in line for line in lines) == 1
    assert lines[-1] == "the answer"
    if flags:
        assert sum("! start" in line and "interrupted" in line for line in lines) == 1
        assert "error: Interrupted" in lines
    while_it_went = terminal.output
    assert "CREATING" in while_it_went
    assert "30.0 of 40.0 MB" in while_it_went
    if columns == 80:  # narrow terminals show only slow ones
        assert "MB/s" in while_it_went


LOG = [
    *("tpuctl: installing requirements.txt", "starting: step 1 loss 2.5", "step 2 loss 1.5"),
    *("a note after it", "the answer"),
]


def test_terminal_shows_what_job_does_in_pauses_of_its_log(tmp_path: Path) -> None:
    terminal = run_in_terminal(tmp_path, 36, 24, story=LOG_STORY, **LIVE)
    screen = Screen(36, 24)
    screen.feed(terminal.output)
    assert screen.lines == LOG, "nothing of it is left"
    assert "waiting for the log" in terminal.output
    assert terminal.output.count("installing requirements.txt") >= 2
    assert "step 1, loss 2.5" in terminal.output


def test_step_says_what_job_does_if_its_log_goes_elsewhere(tmp_path: Path) -> None:
    story = """
import time
from tpuctl.model.events import *
from tpuctl.view import choose

view = choose(json=False, events=True, quiet=False, no_color=True)
view.on(StepStarted("job/log", "follow"))
view.on(StepProgress("job/log", "waiting for its first line"))
view.on(LogChunk(0, b"step 7 loss 1.5\\n", 0))
time.sleep(0.6)
view.on(JobEnded("job", "succeeded", 0, True))
view.on(StepFinished("job/log", Outcome.DONE, 1.0, "succeeded"))
view.close()
"""
    terminal = run_in_terminal(tmp_path, 80, 24, story=story, elsewhere="> log")
    assert "step 7, loss 1.5" in terminal.output
    assert (tmp_path / "log").read_text() == "step 7 loss 1.5\n"


def test_files_get_the_log_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOG_STORY],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | LIVE,
    )
    assert done.stdout.splitlines() == [*LOG[:3], LOG[4]]
    assert done.stderr == "a note after it\n"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_dumb_terminal_gets_lines(tmp_path: Path, environment: dict[str, str]) -> None:
    output = run_in_terminal(tmp_path, 80, 24, **environment).output
    assert "\x1b" not in output
    assert output.count("create node/stack-tpu-7\n") == 1


def test_ascii_terminal_gets_ascii_only(tmp_path: Path) -> None:
    output = run_in_terminal(
        tmp_path, 80, 24, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0", **LIVE
    ).output
    assert output.isascii()
    screen = Screen(80, 24)
    screen.feed(output)
    assert any("+ upload" in line for line in screen.lines)


@pytest.mark.parametrize("flag", ["", "quiet", "json"])
def test_pipe_gets_lines_json_or_errors_only(flag: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORY, flag], capture_output=True, text=True, check=True
    )
    assert "\x1b" not in done.stdout + done.stderr
    lines = done.stderr.splitlines()
    if flag == "json":
        assert done.stdout.startswith('{"event": "Planned", "steps": [{"address": "network/main"')
        assert lines == []
        return
    assert done.stdout == "the answer\n"
    if flag == "quiet":
        assert lines == []  # a warning is no error
        return
    assert lines[0] == "65 to create, 1 unchanged"
    assert "created node/stack-tpu-7 (12 s)" in lines
    assert "failed node/stack-tpu-63 (12 s)" in lines
    assert lines.count("  job/upload: 10.0 of 40.0 MB") == 1
