"""The progress tree: waiting rows, collapsed rows, and how rows fit the terminal."""

from __future__ import annotations

import io
import itertools
import re
import threading

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from tests.support.screen import Screen
from tpuctl.model.events import (
    Outcome,
    Planned,
    PlannedStep,
    StepFinished,
    StepProgress,
    StepStarted,
)
from tpuctl.view.progress.progress_state import ProgressState, RowState
from tpuctl.view.progress.progress_tree import ProgressTree
from tpuctl.view.progress.transfer import Rate, transfer_words
from tpuctl.view.terminal.live_region import LiveConsole, LiveRegion


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def story(clock: Clock) -> ProgressState:
    return ProgressState(clock)


def test_phase_says_what_it_does_while_it_runs(story: ProgressState) -> None:
    story.on(StepStarted("job/notebook", "start", "installs JupyterLab the first time"))
    (line, *_) = texts(ProgressTree(story).live(80, 24))
    assert "installs JupyterLab the first time" in line


def planned(*steps: tuple[str, str, tuple[str, ...]]) -> Planned:
    return Planned(tuple(PlannedStep(name, action, "", after) for name, action, after in steps))


def texts(renderable: RenderableType) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    lines = console.render_lines(renderable, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def stack(story: ProgressState) -> None:
    story.on(
        planned(
            ("project/p", "nothing", ()),
            ("bucket/b", "create", ("project/p",)),
            ("network/main", "create", ("project/p",)),
            ("node/n", "create", ("bucket/b", "network/main")),
            ("ssh/workers", "connect", ("node/n",)),
        )
    )


def test_planned_row_shows_what_it_waits_for(story: ProgressState) -> None:
    stack(story)
    words = {row.address: story.description(row) for row in story.rows}
    assert words["bucket/b"] == "to create"  # the project exists
    assert words["node/n"] == "waits for bucket/b and 1 more"
    story.on(StepStarted("network/main", "create"))
    words = {row.address: story.description(row) for row in story.rows}
    assert words["node/n"] == "waits for network/main and 1 more"  # running ones first
    story.on(StepFinished("network/main", Outcome.DONE, 1.0))
    story.on(StepFinished("bucket/b", Outcome.DONE, 1.0))
    words = {row.address: story.description(row) for row in story.rows}
    assert words["node/n"] == "to create"
    assert words["ssh/workers"] == "waits for node/n"


def test_unplanned_phase_stands_before_those_that_have_not_begun(story: ProgressState) -> None:
    story.on(planned(("job/stack", "find", ()), ("job/start", "start", ("job/stack",))))
    story.on(StepStarted("job/stack", "find"))
    story.on(StepStarted("job/tools", "store"))
    assert [row.name for row in story.rows] == ["stack", "tools", "start"]


def test_running_row_shows_state_and_time(story: ProgressState, clock: Clock) -> None:
    stack(story)
    story.on(StepStarted("node/n", "create"))
    story.on(StepProgress("node/n", "WAITING_FOR_RESOURCES"))
    clock.seconds += 75
    (line,) = (line for line in texts(ProgressTree(story).live(80, 24)) if "node/n " in line)
    assert "WAITING_FOR_RESOURCES" in line
    assert line.endswith("1:15")


def test_failed_and_skipped_rows_stay(story: ProgressState) -> None:
    stack(story)
    story.on(StepStarted("bucket/b", "create"))
    story.on(StepFinished("bucket/b", Outcome.FAILED, 2.0, "Denied"))
    story.on(StepFinished("node/n", Outcome.SKIPPED, 0.0, "bucket/b"))
    record = texts(ProgressTree(story).ended(story.remove_ended(), 80))
    (failed,) = (line for line in record if "✗ bucket/b " in line)
    assert "failed" in failed
    assert any("skipped: bucket/b failed" in line for line in record)
    left = {row.address for row in story.rows}
    assert left == {"network/main", "ssh/workers"}  # neither was started


@pytest.mark.parametrize("running", [0, 5, 64])
def test_sixty_four_nodes_fit_every_terminal(story: ProgressState, running: int) -> None:
    nodes = [f"node/a-rather-long-name-of-a-stack-tpu-{number}" for number in range(64)]
    stack(story)
    story.on(planned(*((name, "create", ("bucket/b",)) for name in nodes)))
    story.on(StepFinished("bucket/b", Outcome.DONE, 1.0))
    for name in nodes[:running]:
        story.on(StepStarted(name, "create"))
        story.on(StepProgress(name, "CREATING 안녕\x1b[31m\n"))
    for width, height in itertools.product([80, 40, 20], [24, 10, 5, 3, 2]):
        lines = texts(ProgressTree(story).live(width, height))
        assert len(lines) < height, (width, height)
        assert all(cell_len(line) < width for line in lines), (width, height)
        assert all("\x1b" not in line and "\n" not in line for line in lines)


def test_rows_that_do_not_fit_are_counted(story: ProgressState) -> None:
    names = [f"node/n-{number}" for number in range(64)]
    story.on(planned(*((name, "create", ()) for name in names)))
    for name in names[:3]:
        story.on(StepFinished(name, Outcome.DONE, 1.0))
    for name in names[3:40]:
        story.on(StepStarted(name, "create"))
        story.on(StepProgress(name, "CREATING"))
    story.on(StepFinished(names[39], Outcome.FAILED, 1.0))
    lines = texts(ProgressTree(story).live(80, 24))
    visible = sum(f" {name} " in line for name in names for line in lines if "more" not in line)
    (more,) = (int(count) for line in lines for count in re.findall(r"(\d+) more:", line))
    assert any("✗ node/n-39 " in line for line in lines)  # failures are never collapsed
    assert visible + more == 37
    assert any("24 planned" in line for line in lines)
    assert any("3 done" in line for line in lines)


def test_many_unchanged_rows_are_counted(story: ProgressState) -> None:
    few = [(f"network/{number}", "nothing", ()) for number in range(3)]
    story.on(planned(*few, ("node/n", "create", ())))
    assert sum("network/" in line for line in texts(ProgressTree(story).live(80, 24))) == 3
    story.on(planned(("bucket/b", "leave", ())))
    lines = texts(ProgressTree(story).live(80, 24))
    assert [line for line in lines if "network/0" in line] == [
        line for line in lines if "4 unchanged" in line
    ]


def test_plan_of_ended_rows_starts_over(story: ProgressState) -> None:
    stack(story)
    again = planned(("node/n", "delete", ()))
    assert not story.starts_over(again)
    story.on(StepFinished("node/n", Outcome.FAILED, 1.0))
    assert story.starts_over(again)
    assert not story.starts_over(planned(("project/p", "leave", ())))


def test_rows_are_printed_once(story: ProgressState) -> None:
    stack(story)
    for address in ("bucket/b", "network/main", "node/n", "ssh/workers"):
        story.on(StepFinished(address, Outcome.DONE, 1.0))
    assert story.is_over
    assert len(story.remove_ended()) == 5
    story.on(StepFinished("project/p", Outcome.UNCHANGED, 0.0, "it is there"))
    assert story.remove_ended() == []


def test_transferred_bytes_and_rate() -> None:
    assert transfer_words(500, 27_100_000, None) == ["0.0 of 27.1 MB"]
    assert transfer_words(10_000_000, 30_000_000, 2_000_000) == [
        "10.0 of 30.0 MB", "2.0 MB/s", "10 s left",
    ]  # fmt: skip
    assert transfer_words(30, 30, 5.0) == ["0.0 of 0.0 kB", "0.0 kB/s"]
    rate = Rate()
    assert rate.per_second is None
    for second in range(20):
        rate.feed(float(second), second * 1000 if second < 10 else 9000 + (second - 9) * 100)
    slow = rate.per_second
    assert slow is not None
    assert 99 < slow < 200
    rate.feed(21.0, 50)
    assert rate.per_second is None


@pytest.mark.parametrize("width", [80, 40])
def test_transfer_shows_bar_rate_and_remaining_time(
    story: ProgressState, clock: Clock, width: int
) -> None:
    story.on(StepStarted("job/upload", "upload"))
    for done in (1_000_000, 11_000_000):
        story.on(StepProgress("job/upload", "", done / 4e7, done, 40_000_000))
        clock.seconds += 2
    story.on(StepProgress("job/upload", "", 21 / 40, 21_000_000, 40_000_000))
    (line,) = texts(ProgressTree(story).live(width, 24))
    assert "21.0 of 40.0 MB" in line
    if width == 80:
        assert "━" in line
        assert "52% " in line
        assert "5.0 MB/s, 3.8 s left" in line


def console_on(written: io.StringIO, width: int) -> LiveConsole:
    return LiveConsole(file=written, force_terminal=True, width=width, height=20, color_system=None)


def test_live_region_cleans_up_and_never_hides_cursor() -> None:
    """Printing and drawing in several threads at once mix no lines."""
    screen, written = Screen(30, 8), io.StringIO()
    console = console_on(written, 30)
    sizes = itertools.cycle([3, 1, 5, 0, 2])
    region = LiveRegion(console, lambda: "\n".join(["moving"] * next(sizes)))
    region.start(refresh=True)
    is_over = threading.Event()

    def draw() -> None:
        while not is_over.is_set():
            region.refresh()

    thread = threading.Thread(target=draw)
    thread.start()
    for number in range(100):
        with region.lock:
            console.print(f"stays {number}")
    is_over.set()
    thread.join()
    region.stop()
    screen.feed(written.getvalue())
    assert written.getvalue().count("moving") > 100
    assert screen.lines == [f"stays {number}" for number in range(100)]
    assert screen.modes == []


@pytest.mark.parametrize("heights", [(1, 1), (2, 3)])
def test_live_region_in_narrowed_terminal(heights: tuple[int, int]) -> None:
    """Its lines take more rows now, all of which are erased, and nothing else is."""
    screen, written = Screen(20, 20), io.StringIO()
    console = console_on(written, 20)
    height = heights[0]
    region = LiveRegion(console, lambda: "\n".join(["x" * (console.width - 1)] * height))
    console.print("stays")
    with region.lock:
        region.start(refresh=True)
        first = written.getvalue()
        screen.feed(first + "^C")  # as the terminal echoes it
        assert screen.lines == ["stays", *["x" * 19] * (height - 1), "^C" + "x" * 17]
        screen.resize(10)
        console.width = 10
        height = heights[1]
    region.refresh()
    region.stop()
    last_frame, _, end = written.getvalue()[len(first) :].rpartition("\n")
    screen.feed(last_frame)
    assert screen.lines == ["stays", *["x" * 9] * height]
    screen.feed(f"\n{end}")
    assert screen.lines == ["stays"]


def test_row_states_have_distinct_marks() -> None:
    """Colors add no information."""
    from tpuctl.view.progress.progress_tree import ASCII_MARKS, MARKS, STYLES

    ascii_marks = {state: mark.translate(ASCII_MARKS) for state, mark in MARKS.items()}
    for marks in (MARKS, ascii_marks):
        assert set(marks) == set(STYLES) == set(RowState)
        assert len(set(marks.values())) == len(RowState)
    assert "".join(ascii_marks.values()).isascii()
    assert not any("yellow" in style or "white" in style for style in STYLES.values())
