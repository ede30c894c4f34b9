"""The report of a rehearsal, on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from tpuctl.preflight.findings import Severity
from tpuctl.preflight.submit_gate import display_path
from tpuctl.units import counted, dollars
from tpuctl.view.checks.findings import COLORS, INDENT, TextOutput, hint_lines
from tpuctl.view.terminal.text_wrapping import cut, plain

if TYPE_CHECKING:
    from tpuctl.preflight.rehearsal.findings import Finding, Target
    from tpuctl.preflight.rehearsal.rehearsal_report import Rehearsal

NAME = 12  # columns of the labels


def rehearsal_lines(
    done: Rehearsal, paper: TextOutput, command: Callable[[str], str]
) -> Iterator[str]:
    """Problems in the style of a linter, then facts, then the next command.

    `command` gives the line for `run` or `rehearse`.
    """
    problems, target = done.assessment.problems, done.target
    for finding in problems:
        yield from _problem_lines(finding, paper)
        if paper.is_terminal:
            yield ""
    version = _framework(done)
    yield paper.colored(f"Rehearsed for {target.type}{version}, on this machine's CPU", "1")
    rest = [finding for finding in done.assessment.findings if not finding.is_problem]
    facts = [(finding.topic, _fact(finding)) for finding in rest]
    facts += [("skipped", text) for text in done.skipped]
    facts.append(("price", _price(target)))
    if any(run.saved for run in done.passes):
        facts.append(("output", f"{done.output} (local cloud)"))
    if done.written is not None:
        facts.append(("files", f"{done.written} (what the script wrote to its folder)"))
    facts.append(("log", "\n".join(str(run.log) for run in done.passes)))
    for name, text in facts:
        yield from _fact_lines(name, text, paper)
    yield ""
    yield f"{_counted(problems)}." if problems else "No problem found."
    if done.is_interrupted:
        return
    heading, name = (
        ("After fixing this", "rehearse") if done.assessment.has_errors else ("Next", "run")
    )
    yield f"\n{heading}:\n{INDENT}{command(name)}"


def _problem_lines(finding: Finding, paper: TextOutput) -> Iterator[str]:
    word, head, used = f"{finding.severity:<5}", "", 0
    if finding.where is not None:
        where = f"{plain(display_path(finding.where.file))}:{finding.where.line}"
        head, used = f"{paper.colored(where, '1')} ", cell_len(where) + 1
    head += f"{paper.colored(word, COLORS[Severity(finding.severity)])} "
    used += len(word) + 1
    yield head + paper.wrapped(f"{finding.topic}: {finding.message}", used, len(INDENT))
    if finding.where is not None and finding.where.text and paper.is_terminal:
        text, _ = cut(plain(finding.where.text), 0, paper.width - 9)
        yield f"{finding.where.line:>6} | {text}"
    for line in finding.detail.splitlines():
        yield INDENT + paper.colored(plain(line), "2")
    yield from hint_lines(finding.hint, paper)


def _framework(done: Rehearsal) -> str:
    first = done.passes[0]
    if first.jax is not None:
        return f" with JAX {first.jax}"
    if first.torch is not None:
        return f" with PyTorch {first.torch}"
    tensorflow = done.target.tensorflow
    return f" with TensorFlow {tensorflow}" if tensorflow else ""


def _fact(finding: Finding) -> str:
    return "\n".join(part for part in (finding.message, finding.detail, finding.hint) if part)


def _fact_lines(name: str, text: str, paper: TextOutput) -> Iterator[str]:
    """A label with its text in the column to the right."""
    label = f"{name:<{NAME}}"
    for line in text.splitlines():
        before = len(line) - len(line.lstrip())
        body = " " * before + paper.wrapped(line, NAME + before, NAME)
        yield paper.colored(label, "1") + body
        label = " " * NAME


def _price(target: Target) -> str:
    if target.per_hour is None:
        return "unknown"
    return f"{dollars(target.per_hour)} per hour, {target.price_note}"


def _counted(problems: Sequence[Finding]) -> str:
    """`1 error, 2 costs`."""
    numbers = [(sum(finding.severity == name for finding in problems), name) for name in Severity]
    return ", ".join(counted(count, name) for count, name in numbers if count)
