"""The documentation of a rule, for a terminal and in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.view.terminal.text_wrapping import wrap

if TYPE_CHECKING:
    from tpuctl.preflight.findings import Rule, Target

MEANING = {
    "error": "does not compile or run on a TPU",
    "cost": "runs, but uses more time or memory than necessary",
    "risk": "may fail, or was not written for a TPU",
}


def rule_text(rule: Rule, width: int) -> str:
    """Wrapped to `width` columns, except for code."""
    parts = [
        f"{rule.code} {rule.name} ({_severity(rule)})",
        wrap(sentence(rule.summary), width),
        wrap(f"{_about(rule.target)}{rule.rationale}", width),
        f"Bad:\n{_indented(rule.bad)}",
        f"Good:\n{_indented(rule.good)}",
        f"To suppress it, end the line with\n    {_comment(rule)}\nor, for a whole file, start the "
        f"file with\n    # tpuctl: ignore-file[{rule.code}]",
    ]
    return "\n\n".join(parts)


def rule_markdown(rule: Rule) -> str:
    """The documentation without a heading."""
    severity = rule.severity.value
    return "\n\n".join(
        [
            sentence(rule.summary),
            f"**{severity.capitalize()}**: {MEANING[severity]}. "
            f"{_about(rule.target)}{rule.rationale}",
            f"Bad:\n\n```python\n{rule.bad.strip()}\n```",
            f"Good:\n\n```python\n{rule.good.strip()}\n```",
            f"To suppress it, end the line with `{_comment(rule)}`.",
        ]
    )


def sentence(text: str) -> str:
    """The text with a period at the end."""
    return f"{text.rstrip('.')}."


def _severity(rule: Rule) -> str:
    return f"{rule.severity.value}: {MEANING[rule.severity.value]}"


def _about(target: Target) -> str:
    """The target to which the bad example applies, unless that is any target."""
    text = "Applies only to TPU nodes (`tpu.kind: node`). " if target.kind == "node" else ""
    if target.tensorflow is not None:
        text += f"The example is for TensorFlow {target.tensorflow}. "
    if target.replicas is not None:
        text += f"The example is for {target.replicas} replicas. "
    if target.workers is not None:
        text += f"The example is for {target.workers} workers. "
    return text


def _comment(rule: Rule) -> str:
    return f"# tpuctl: ignore[{rule.code}]"


def _indented(code: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in code.strip().splitlines())
