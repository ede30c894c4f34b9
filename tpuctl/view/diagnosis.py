"""The findings of `doctor`: a line for each check, and a summary."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tpuctl.model.troubleshooting.diagnosis import CheckState, Diagnosis, Finding
from tpuctl.model.troubleshooting.role import CustomRole
from tpuctl.units import counted
from tpuctl.view.terminal.text_wrapping import wrap

STYLES = {
    CheckState.OK: "green",
    CheckState.WARNING: "yellow",
    CheckState.PROBLEM: "bold red",
    CheckState.SKIPPED: "dim",
}
WORD, NAME = 10, 14  # columns: the longest state, the longest name of a check, and a space between
INDENT = " " * (WORD + 1 + NAME)


def show_finding(finding: Finding, console: Console) -> None:
    """`problem   billing       no account is linked…`, and the fix below it.

    Words are wrapped for a terminal; commands stay whole, so that they can be copied.
    """
    width = console.width
    line = Text()
    line.append(f"{finding.state.value:<{WORD}} ", STYLES[finding.state])
    line.append(f"{finding.check:<{NAME}}", "bold")
    text = f"\n{INDENT}".join(
        wrap(part, width, used=len(INDENT), indent=f"{INDENT}  ")
        for part in finding.message.splitlines()
    )
    line.append(text, "dim" if finding.state is CheckState.SKIPPED else "")
    _print(console, line)
    for part in finding.hint.splitlines():
        if part.startswith("    "):
            _print(console, Text(f"{' ' * (WORD + 1)}{part}", "cyan"))
        else:
            indent = " " * (WORD + 1)
            _print(console, Text(indent + wrap(part, width, used=WORD + 1, indent=indent)))


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)


def summary(diagnosis: Diagnosis) -> str:
    """The summary of all findings."""
    problems = len(diagnosis.problems)
    skipped = sum(finding.state is CheckState.SKIPPED for finding in diagnosis.findings)
    rest = f" {skipped} skipped." if skipped else ""
    if not problems:
        warnings = sum(finding.state is CheckState.WARNING for finding in diagnosis.findings)
        suffix = f", with {counted(warnings, 'warning')}" if warnings else ""
        return f"No problems found{suffix}.{rest}"
    return f"{counted(problems, 'problem')}.{rest}"


def role_text(role: CustomRole) -> str:
    """YAML for `gcloud iam roles create --file`, with what each group is for."""
    lines = [
        "# A custom role for a principal that runs up, run, status and down on one stack only.",
        "# It does not include creating the project. To use it:",
        "#",
    ]
    for grant in role.grants:
        lines += [f"# {grant.purpose}", f"#     {grant.command}"]
    lines += [
        f"title: {role.title}",
        f"description: {role.description}",
        f"stage: {role.stage}",
        "includedPermissions:",
    ]
    for group in role.groups:
        only = f"; only for {group.path}" if group.path else ""
        lines.append(f"# {group.purpose}{only}")
        lines += [f"- {name}" for name in group.permissions]
    lines.append("# Optional, for quota and organization policies: nothing fails without these:")
    lines += [f"# - {name}" for name in role.optional_permissions]
    return "\n".join(lines)
