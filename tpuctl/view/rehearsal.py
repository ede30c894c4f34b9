"""What a rehearsal found out, on stdout and in JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.preflight.findings import Severity
from tpuctl.preflight.submit_gate import display_path
from tpuctl.view.findings import COLORS, INDENT, Paper
from tpuctl.view.tables import money
from tpuctl.view.text_wrapping import columns, cut, plain, wrapped

if TYPE_CHECKING:
    from tpuctl.preflight.rehearsal.findings import Finding, Target
    from tpuctl.preflight.rehearsal.rehearsal_report import Rehearsal

__all__ = ["rehearsal_data", "rehearsal_lines"]

COMMAND = re.compile(r"(?m)^( +)tpuctl (rehearse.*|check.*)$")
NAME = 12  # columns of the names of what is said


def rehearsal_data(done: Rehearsal) -> dict[str, Any]:
    """Everything, for programs; what is no number in JSON is a text."""
    judgement, target, likely = done.judgement, done.target, done.judgement.estimate
    data = {
        "target": {
            "type": target.type,
            "kind": target.kind,
            "replicas": target.replicas,
            "chips": target.chips,
            "bytes_per_replica": target.bytes_per_replica,
            "tensorflow": target.tensorflow,
            "per_hour": target.per_hour,
        },
        "findings": [
            {
                "topic": one.topic,
                "severity": one.severity,
                "message": one.message,
                "detail": one.detail,
                "hint": one.hint,
                "file": str(one.where.file) if one.where else None,
                "line": one.where.line if one.where else None,
            }
            for one in judgement.findings
        ],
        "measured": dict(judgement.measured),
        "estimate": {
            "unavailable_reason": likely.why_not,
            "steps": likely.steps,
            "step_seconds": likely.step_seconds,
            "seconds": likely.seconds,
            "dollars": likely.dollars,
        },
        "runs": [
            {
                "mode": one.mode,
                "replicas": one.replicas,
                "steps": len(one.steps),
                "exit_code": one.exit_code,
                "stopped": one.stopped,
                "seconds": round(one.seconds, 3),
                "log": str(one.log),
            }
            for one in done.passes
        ],
        "skipped": list(done.left_out),
        "output": done.output,
        "interrupted": done.is_interrupted,
    }
    return {name: _in_json(value) for name, value in data.items()}


def rehearsal_lines(done: Rehearsal, paper: Paper, command: Callable[[str], str]) -> Iterator[str]:
    """Problems like a linter's, then what is fine or could not be seen, then what to type next.

    `command` gives the line for `run` or `rehearse`.
    """
    problems, target = done.judgement.problems, done.target
    for one in problems:
        yield from _problem_lines(replace(one, hint=_typed(one.hint, command)), paper)
        if paper.is_terminal:
            yield ""
    version = f" with TensorFlow {target.tensorflow}" if target.tensorflow else ""
    yield paper.colored(f"Rehearsed for {target.type}{version}, on this machine's CPU", "1")
    rest = [one for one in done.judgement.findings if not one.is_problem]
    facts = [(one.topic, _fact(replace(one, hint=_typed(one.hint, command)))) for one in rest]
    facts += [("left out", text) for text in done.left_out]
    facts.append(("price", _price(target)))
    if any(one.saved for one in done.passes):
        facts.append(("output", f"{done.output} (local cloud)"))
    facts.append(("log", "\n".join(str(one.log) for one in done.passes)))
    for name, text in facts:
        yield from _fact_lines(name, text, paper)
    yield ""
    yield f"{_counted(problems)}." if problems else "No problem found."
    if done.is_interrupted:
        return
    what, name = (
        ("Once that is mended", "rehearse") if done.judgement.has_errors else ("Next", "run")
    )
    yield f"\n{what}:\n{INDENT}{command(name)}"


def _problem_lines(one: Finding, paper: Paper) -> Iterator[str]:
    word, head, used = f"{one.severity:<5}", "", 0
    if one.where is not None:
        where = f"{plain(display_path(one.where.file))}:{one.where.line}"
        head, used = f"{paper.colored(where, '1')} ", columns(where) + 1
    head += f"{paper.colored(word, COLORS[Severity(one.severity)])} "
    used += len(word) + 1
    yield head + _fitted(f"{one.topic}: {one.message}", paper, used, len(INDENT))
    if one.where is not None and one.where.text and paper.is_terminal:
        text, _ = cut(plain(one.where.text), 0, paper.width - 9)
        yield f"{one.where.line:>6} | {text}"
    for line in one.detail.splitlines():
        yield INDENT + paper.colored(plain(line), "2")
    label = "help: "
    for line in one.hint.splitlines():
        is_code = line.startswith(" ")
        shown = plain(line) if is_code else _fitted(line, paper, len(INDENT) + len(label), 10)
        yield INDENT + paper.colored(label + shown, "32")
        label = " " * len(label)


def _typed(hint: str, command: Callable[[str], str]) -> str:
    """With its commands as the user has to type them for this script."""
    return COMMAND.sub(lambda found: f"{found[1]}{command(found[2])}", hint)


def _fact(one: Finding) -> str:
    return "\n".join(part for part in (one.message, one.detail, one.hint) if part)


def _fact_lines(name: str, text: str, paper: Paper) -> Iterator[str]:
    """A name, and beside it what is said, however many lines that takes."""
    label = f"{name:<{NAME}}"
    for line in text.splitlines():
        before = len(line) - len(line.lstrip())
        shown = " " * before + _fitted(line, paper, NAME + before, NAME)
        yield paper.colored(label, "1") + shown
        label = " " * NAME


def _price(target: Target) -> str:
    if target.per_hour is None:
        return "not known"
    return f"{money(target.per_hour)} an hour, {target.price_note}"


def _counted(problems: Sequence[Finding]) -> str:
    """`1 error, 2 costs`."""
    numbers = [(sum(one.severity == name for one in problems), name) for name in Severity]
    return ", ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in numbers if count)


def _fitted(text: str, paper: Paper, used: int, by: int) -> str:
    """In one line for programs; on a terminal broken between words."""
    text = plain(" ".join(text.split()))
    return wrapped(text, paper.width, used=used, indent=" " * by) if paper.is_terminal else text


def _in_json(value: Any) -> Any:
    """The same with NaN and infinities as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _in_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(each) for each in value]
    return value
