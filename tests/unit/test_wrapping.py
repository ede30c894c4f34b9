"""What users read wraps between words at any width; what they copy stays whole."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

import pytest
from rich.cells import cell_len

from tpuctl.cli.state import State
from tpuctl.errors import Diagnostic
from tpuctl.model.cost.cost import Cost, node_cost
from tpuctl.model.events import Note, WarningIssued
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.view.progress.base import View
from tpuctl.view.progress.console import Console
from tpuctl.view.progress.plain import Plain
from tpuctl.view.stack.cost import print_cost
from tpuctl.view.stack.stack import show_plan

COMMAND = "tpuctl --stack-file a-rather-long-name.yaml down --delete-bucket --stack some-stack"
ENGLISH = "the zone us-central1-b has no capacity for this type now, so that another is requested"
KOREAN = "이 영역에는 지금 이 종류의 용량이 없으므로 다른 영역에 요청합니다. 손실 값을 지켜보세요."
WIDTHS = range(20, 201)


class FakeTerminal(io.StringIO):
    """A stream that is as wide as $COLUMNS."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise io.UnsupportedOperation


def output_of(show: Callable[[], object], columns: int = 80, *, color: bool = False) -> str:
    """What is shown on a terminal of that width."""
    stream = FakeTerminal()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(stream),
        redirect_stderr(stream),
    ):
        patch.setattr(sys, "stdin", FakeTerminal("y\n"))
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("NO_COLOR", "" if color else "1")
        show()
    return stream.getvalue()


def require_wrapped(text: str, width: int, *prose: str) -> None:
    """Every line fits or is one word; words are whole and in order; the command is on its line."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert [line.strip() for line in lines].count(COMMAND) == 1
    others = [line for line in lines if line.strip() != COMMAND]
    assert [line for line in others if cell_len(line) > width and " " in line.strip()] == []
    words = " ".join(others).split()
    for part in prose:
        assert f" {' '.join(part.split())} " in f" {' '.join(words)} "


@pytest.mark.parametrize(
    "make", [Console, Plain, partial(Plain, quiet=True)], ids=["live", "plain", "quiet"]
)
def test_errors_wrap_between_words(make: Callable[[], View]) -> None:
    error = Diagnostic(
        "No capacity in the zone", f"{ENGLISH}\n{KOREAN}", f"{ENGLISH}:\n    {COMMAND}"
    )
    for width in WIDTHS:
        text = output_of(lambda: make().problems([error]), width)
        require_wrapped(text, width, "No capacity in the zone", ENGLISH, KOREAN)


def test_notes_warnings_and_results_wrap_between_words() -> None:
    warning = WarningIssued(Diagnostic("Careful", KOREAN, f"Do\n    {COMMAND}"))
    for width in WIDTHS:
        for event in (Note(f"{KOREAN}\n    {COMMAND}"), warning):
            text = output_of(lambda event=event: Console().on(event), width)  # type: ignore[misc]
            require_wrapped(text, width, KOREAN)
    for width in WIDTHS:
        text = output_of(lambda: State().note(f"{ENGLISH}\n{KOREAN}\n    {COMMAND}"), width)
        require_wrapped(text, width, ENGLISH, KOREAN)


def test_question_wraps_with_room_for_the_answer() -> None:
    for width in WIDTHS:
        lines = output_of(lambda: State().confirm(f"{ENGLISH}. Continue?"), width).splitlines()
        assert [line for line in lines if cell_len(line) > width] == []
        assert lines[-1].rstrip().endswith("[Y/n]:")


def test_pipe_gets_one_line_for_each_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    Plain(out=stream).on(Note(ENGLISH * 10))
    assert stream.getvalue() == f"{ENGLISH * 10}\n"
    State().note(ENGLISH * 10)
    assert capsys.readouterr().out == f"{ENGLISH * 10}\n"


@pytest.mark.parametrize("make", [Console, Plain])
def test_hint_of_several_errors_is_shown_once(make: Callable[[], View]) -> None:
    zones = "Zones with v2-8: asia-east1-c, europe-west4-a."
    errors = [Diagnostic("TPU type not offered in zone", name, zones) for name in ("a", "b")]
    text = output_of(lambda: make().problems([*errors, Diagnostic("Other", "c", "Else.")]), 200)
    assert text.count(zones) == 1
    assert text.index(" b\n") < text.index(zones) < text.index("Other")


def plan_of(unchanged: int) -> Plan:
    changes = [
        Change(f"firewall/{number}", Action.NOTHING, because="it exists")
        for number in range(unchanged)
    ]
    return Plan((*changes, Change("node/a", Action.CREATE, because="no node")))


@pytest.mark.parametrize(("unchanged", "lines"), [(3, 6), (4, 4)])
def test_plan_folds_what_stays_and_colors_the_rest(unchanged: int, lines: int) -> None:
    plan = plan_of(unchanged)
    text = output_of(lambda: show_plan(plan), color=True)
    assert len(text.splitlines()) == lines
    assert ("4 unchanged" in text) == (unchanged == 4)
    assert "firewall/0" in text
    assert "\x1b[32m" in text
    assert "\x1b[32m" not in output_of(lambda: show_plan(plan, no_color=True), color=True)


def test_total_of_the_cost_is_bold() -> None:
    cost = Cost((node_cost("v3-8", "europe-west4-a"),))
    assert "\x1b[1mtotal" in output_of(lambda: print_cost(cost), color=True)
