"""What a rehearsal found out, on stdout and in JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tpuctl.view.base import indent
from tpuctl.view.tables import console, facts_table, money

if TYPE_CHECKING:
    from tpuctl.preflight.rehearsal.finding import Finding, Target
    from tpuctl.preflight.rehearsal.observed import Where
    from tpuctl.preflight.rehearsal.outcome import Rehearsal

__all__ = ["rehearsal_data", "show_rehearsal"]

STYLES = {"error": "bold red", "cost": "yellow", "risk": "magenta"}
WORDS = {"error": ("error", "errors"), "cost": ("cost", "costs"), "risk": ("risk", "risks")}


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
            "why_not": likely.why_not,
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
        "left_out": list(done.left_out),
        "output": done.output,
        "interrupted": done.is_interrupted,
    }
    return {name: _plain(value) for name, value in data.items()}


def show_rehearsal(done: Rehearsal, command: Callable[[str], str]) -> None:
    """Problems like a linter's, then a line for each thing that is fine or could not be seen.

    `command` gives the line to type for `run` or `rehearse`.
    """
    out, target = console(), done.target
    for one in done.judgement.problems:
        out.print(_problem(one))
        if one.detail:
            out.print(Text(indent(one.detail, "    "), style="dim"), soft_wrap=True)
        if one.hint:
            out.print(Text(indent(one.hint, "    "), style="green"))
    version = f" with TensorFlow {target.tensorflow}" if target.tensorflow else ""
    title = f"Rehearsed for {target.type}{version}, on this machine's CPU"
    out.print(Text(f"\n{title}" if done.judgement.problems else title, style="bold"))
    rest = [one for one in done.judgement.findings if not one.is_problem]
    facts = [(one.topic, _fact(one)) for one in rest]
    facts += [("left out", text) for text in done.left_out]
    facts.append(("price", _price(done.target)))
    facts.append(("log", "\n".join(_near(one.log) for one in done.passes)))
    out.print(facts_table([(name, text) for name, text in facts if text]))
    out.print(_sum(done.judgement.problems))
    if done.is_interrupted:
        return
    if done.judgement.has_errors:
        out.print(f"\nOnce that is mended:\n    {command('rehearse')}", markup=False)
    else:
        out.print(f"\nNext:\n    {command('run')}", markup=False)


def _problem(one: Finding) -> Text:
    text = Text()
    if one.where is not None:
        text.append(f"{_place(one.where)}: ", style="bold")
    text.append(one.severity, style=STYLES[one.severity])
    text.append(f": {one.topic}: {one.message}")
    if one.where is not None and one.where.text:
        text.append(f"\n    {one.where.text}", style="dim")
    return text


def _fact(one: Finding) -> str:
    parts = [one.message, *(line for line in (one.detail, one.hint) if line)]
    return "\n".join(parts)


def _price(target: Target) -> str:
    if target.per_hour is None:
        return "not known"
    return f"{money(target.per_hour)} an hour, {target.price_note}"


def _sum(problems: Sequence[Finding]) -> str:
    counts = []
    for severity, (one, several) in WORDS.items():
        number = sum(each.severity == severity for each in problems)
        if number:
            counts.append(f"{number} {one if number == 1 else several}")
    return f"\nFound {', '.join(counts)}." if counts else "\nFound no problem."


def _place(where: Where) -> str:
    return f"{_near(where.file)}:{where.line}"


def _near(path: Path) -> str:
    """Relative where it is below the current folder, from home where it is below that."""
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return f"{prefix}{path.relative_to(base)}"
    return str(path)


def _plain(value: Any) -> Any:
    """The same with NaN and infinities as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
