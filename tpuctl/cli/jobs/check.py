"""The `check` command: static checks of scripts and the stack file."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.state import State
from tpuctl.errors import Usage
from tpuctl.files import exists, is_file, is_folder
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.model.stack.stack import Stack
    from tpuctl.preflight.findings import Report
    from tpuctl.preflight.fixes import Fixes
    from tpuctl.view.checks.findings import TextOutput

MAX_FIX_PASSES = 10  # of --fix: a fix may enable another


class Format(StrEnum):
    text = "text"
    github = "github"
    gitlab = "gitlab"
    sarif = "sarif"


def check(
    context: typer.Context,
    scripts: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SCRIPT",
            help="Scripts (with their local imports) or folders to check.",
            show_default=False,
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module", "-m", metavar="NAME", help="Check a module of the current folder."
        ),
    ] = None,
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="Output format: text, github (annotations), gitlab (code quality) or sarif.",
            show_choices=False,
        ),
    ] = Format.text,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Apply safe fixes; shows a diff and asks first."),
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="CODES", help="Check only these rules, such as TPU1,TPU401."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="CODES", help="Skip these rules.")
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="CODE", help="Explain a rule, with examples."),
    ] = None,
) -> int:
    """Find code that will fail or waste time on a TPU, without a TPU and without running it.

    Scripts are checked for the stack's TPU, or for a TPU VM if there is no
    stack file. Without a script, only the stack file is checked. Exits with 1
    if there are errors; costs and risks are reported, but do not change the
    exit code.

    Example: tpuctl check train.py
    """
    state: State = context.obj
    named = list(scripts or ())
    if explain is not None:
        _require_alone(explain, is_alone=not (named or module or fix or select or ignore))
        _explain(state, explain)
        return 0
    if format is not Format.text and state.json:
        raise _conflict("--json and --format both set the output format", "--format")
    if module is not None and named:
        raise _conflict("-m NAME replaces the scripts", "-m")
    if module is None and not named:
        if fix or select or ignore or format is not Format.text:
            raise Usage(
                "Nothing to check",
                "these options need a script",
                hint="For example\n    tpuctl check train.py --fix",
            )
        _check_stack(state)
        return 0
    if len(named) == 1:
        state.script = shlex.quote(str(named[0]))
    rule_codes = _selected_codes(select, ignore)
    for path in named:
        _require_script(path)
    stack = _stack(state)
    checked = _Check.of(state, stack, named, module, rule_codes)
    if fix:
        checked.fix()
    checked.output(format)
    if stack is not None:
        _require_safe_folder(named)
        _require_installation(stack, named)
    return 1 if checked.report.errors else 0


# The stack file ----------------------------------------------------------------------------------


def _check_stack(state: State) -> None:
    stack = _load(state)
    facts = _facts(stack)

    def show() -> None:
        from tpuctl.view.terminal.tables import print_facts

        first, *others = stack.candidates
        alternatives = {"or": ", ".join(map(str, others))} if first.label and others else {}
        print_facts({**facts, "type": stack.counted_type, **alternatives}.items())

    state.answer(lambda: responses.checks.CheckedStack(**facts), show)


def _facts(stack: Stack) -> dict[str, str]:
    return {
        "stack": stack.name,
        "type": stack.accelerator.name,
        "zone": stack.zone,
        "runtime": stack.runtime.version,
        "bucket": stack.bucket,
        "price": str(stack.price * len(stack.nodes)) if stack.price else "unknown",
    }


def _stack(state: State) -> Stack | None:
    """The stack of the stack file; None if there is none and none was named."""
    if state.named_stack_file is None and not state.stack_file.exists():
        return None
    return _load(state)


def _load(state: State) -> Stack:
    from tpuctl.model.stack.stack import load_stack

    return load_stack(state.stack_file)


# Scripts -----------------------------------------------------------------------------------------


@dataclass
class _Check:
    """One invocation: what is checked, for which target, and the report."""

    state: State
    facts: dict[str, str]
    target_name: str  # for what it is checked, in words
    script_arguments: list[str]  # the arguments that name the scripts
    run: Callable[[], Report]
    report: Report

    @classmethod
    def of(
        cls,
        state: State,
        stack: Stack | None,
        scripts: Sequence[Path],
        module: str | None,
        codes: frozenset[str],
    ) -> _Check:
        from tpuctl.view.checks.progress import CheckProgress

        words = ["-m", module] if module is not None else [str(path) for path in scripts]

        def look() -> Report:
            progress = CheckProgress(is_silent=state.json or state.quiet)
            try:
                return _run_check(scripts, module, stack, progress.show).only(codes)
            finally:
                progress.close()

        report = look()
        target_name = _target_name(state, stack, scripts, report)
        facts = _facts(stack) if stack is not None else {}
        return cls(state, facts, target_name, words, look, report)

    def output(self, format: Format) -> None:
        state, report = self.state, self.report
        if state.json:
            from tpuctl.preflight.submit_gate import diagnostic_of

            checked = {"target": self.target_name, **vars(report)}
            state.record(responses.checks.CheckedScripts(**self.facts, **checked))
            state.problems([diagnostic_of(finding) for finding in report.findings])
            return
        if format is Format.text:
            from tpuctl.view.checks.findings import TextOutput, report_lines

            paper = TextOutput.of(sys.stdout, no_color=state.no_color)
            fix = shlex.join(["tpuctl", "check", *self.script_arguments, "--fix"])
            fix = fix.replace("tpuctl", state.command_prefix, 1)
            lines = report_lines(report, self.target_name, paper, fix, has_summary=not state.quiet)
        elif format is Format.github:
            from tpuctl.view.ci.file_locations import base_folder
            from tpuctl.view.ci.github_annotations import annotation_lines

            lines = annotation_lines(report, base_folder())
        else:
            import json

            from tpuctl.view.ci.file_locations import base_folder
            from tpuctl.view.ci.gitlab_code_quality import code_quality
            from tpuctl.view.ci.sarif import sarif

            render = {Format.gitlab: code_quality, Format.sarif: sarif}[format]
            lines = iter([json.dumps(render(report, base_folder()), indent=2, ensure_ascii=False)])
        state.close_view()
        for line in lines:
            print(line)

    def fix(self) -> None:
        """Apply fixes and check again, until there are no more."""
        for _ in range(MAX_FIX_PASSES):
            if not _fix_once(self.state, self.report):
                return
            self.report = self.run()


def _target_name(state: State, stack: Stack | None, scripts: Sequence[Path], report: Report) -> str:
    """What is checked for, in words: several targets if scripts ask for several Pythons."""
    from tpuctl.preflight.check import describe_target, target_of

    name = stack.accelerator.name if stack is not None else ""
    names = []
    for path in scripts or [Path()]:
        folder, script = (path, None) if path.is_dir() else (path.parent, path)
        target = target_of(stack, folder, script)
        if report.framework in ("jax", "torch"):
            target = replace(target, tensorflow=None)  # which such scripts do not use
        names.append(describe_target(target, name))
    text = " and ".join(dict.fromkeys(names))
    return text if stack is not None else f"{text}, as there is no {state.stack_file}"


def _run_check(
    scripts: Sequence[Path],
    module: str | None,
    stack: Stack | None,
    progress: Callable[[str], None],
) -> Report:
    from functools import partial

    from tpuctl.jobs.upload_rules import upload_of
    from tpuctl.preflight.check import check_path, check_program, program_target, target_of
    from tpuctl.preflight.findings import Report

    uploaded = partial(upload_of, stack)
    if module is None:
        target = partial(target_of, stack)
        report = Report.merge(check_path(path, target, uploaded, progress) for path in scripts)
        if not report.files:
            detail = f"no Python files in {shlex.join(map(str, scripts))}"
            raise Usage(
                "Nothing to check",
                detail,
                hint="Virtual environments, hidden folders, and what is not uploaded are skipped.",
            )
        return report
    from tpuctl.preflight.submit_gate import check_runnable, runnable

    runnable_module = runnable(module, "module")
    if runnable_module.file is None:
        from tpuctl.model.jobs.installation import Installation

        # The module may come from an installed package: only an impossible name is an error.
        check_runnable(runnable_module, Installation(project="."))
        raise Usage(
            "Nothing to check",
            f"module {module} is not in this folder",
            hint="Change to the folder that contains it.",
            where="-m",
        )
    return check_program(runnable_module, program_target(stack, runnable_module), uploaded)


def _require_script(path: Path) -> None:
    from tpuctl.preflight.submit_gate import refuse_notebook

    if not exists(path):
        detail = "is a broken link" if os.path.lexists(path) else "does not exist"
        raise Usage(
            "Script not found",
            f"{path} {detail}",
            hint="Pass the path of a Python file or a folder.",
        )
    refuse_notebook(path)
    if not (is_file(path) or is_folder(path)):
        raise Usage(
            "Not a script",
            f"{path} is neither a file nor a folder",
            hint="Pass a Python file, or a folder of Python files:\n    tpuctl check SCRIPT",
        )


def _require_safe_folder(scripts: Sequence[Path]) -> None:
    """Reject scripts that `run` would reject, too."""
    from tpuctl.preflight.submit_gate import refuse_home

    for path in scripts:
        if path.is_file():
            refuse_home(path.parent, str(path))


def _require_installation(stack: Stack, scripts: Sequence[Path]) -> None:
    """Reject dependencies and wheels that `run` would reject, in its folder."""
    from tpuctl.catalog import host_architecture
    from tpuctl.jobs.requirements.installation import read_installation
    from tpuctl.preflight.submit_gate import check_wheels

    for script in scripts or [Path()]:
        folder = script if script.is_dir() else script.parent
        installation = read_installation(stack.file.job, folder, script)
        check_wheels(folder, installation, host_architecture(stack.accelerator))


# Rewrites --------------------------------------------------------------------------------------


def _fix_once(state: State, report: Report) -> bool:
    """Apply a report's fixes; returns whether any file changed.

    Shows the diff on stderr and asks, unless --yes. Raises Usage without a terminal to ask on.
    """
    from tpuctl.errors import Diagnostic
    from tpuctl.preflight.fixes import propose, write
    from tpuctl.preflight.submit_gate import display_path

    fixes = propose(report.findings)
    if not fixes.rewrites:
        for left in fixes.skipped:
            where = f"{display_path(left.finding.path)}:{left.finding.line}"
            detail = f"{left.finding.code}: {left.reason}"
            hint = "Fix it by hand. For details, run\n"
            hint += f"    tpuctl check --explain {left.finding.code}"
            state.warn(Diagnostic("Not fixed", detail, hint, where))
        return False
    if not state.yes:
        if not state.json:
            for line in _diff_lines(fixes, _stderr(state)):
                print(line, file=sys.stderr)
        count = len(fixes.rewrites)
        state.confirm(f"Change {counted(count, 'file')}?")
    has_changed = False
    for rewrite in fixes.rewrites:
        name = display_path(rewrite.path)
        problem = write(rewrite)
        if problem:
            hint = (
                "Make the file writable, or fix it by hand as the check suggests:\n    tpuctl check"
            )
            state.warn(Diagnostic("Not fixed", problem, hint, name))
            continue
        has_changed = True
        codes = sorted({finding.code for finding in fixes.findings if finding.path == rewrite.path})
        state.announce(f"Changed {name}: {', '.join(codes)}")
    return has_changed


def _diff_lines(fixes: Fixes, paper: TextOutput) -> Iterator[str]:
    from tpuctl.preflight.fixes import diff
    from tpuctl.preflight.submit_gate import display_path
    from tpuctl.view.terminal.text_wrapping import plain

    colors = {"+": "32", "-": "31", "@": "36"}
    for rewrite in fixes.rewrites:
        for line in diff(rewrite, display_path(rewrite.path)):
            color = colors.get(line[:1], "")
            yield paper.colored(plain(line), color) if color else plain(line)


def _stderr(state: State) -> TextOutput:
    from tpuctl.view.checks.findings import TextOutput

    return TextOutput.of(sys.stderr, no_color=state.no_color)


# Rules -------------------------------------------------------------------------------------------


def _selected_codes(select: Sequence[str] | None, ignore: Sequence[str] | None) -> frozenset[str]:
    """The selected rule codes. TPU000, unreadable files, stays unless ignored explicitly."""
    from tpuctl.preflight.rules import RULES

    selected = _parse_codes(select, "--select") | {"TPU000"} if select else frozenset(RULES)
    return selected - (_parse_codes(ignore, "--ignore") if ignore else frozenset())


def _parse_codes(words: Sequence[str], option: str) -> frozenset[str]:
    from tpuctl.preflight.rules import matching_codes

    several = [names.strip() for word in words for names in word.split(",") if names.strip()]
    if not several:
        raise Usage("Missing rule code", f"{option} names no rule", hint=_LIST_HINT, where=option)
    meant: frozenset[str] = frozenset()
    for name in several:
        codes = matching_codes(name)
        if not codes:
            raise _unknown_rule(name, option)
        meant |= codes
    return meant


def _unknown_rule(word: str, option: str) -> Usage:
    from tpuctl.preflight.rules import RULES
    from tpuctl.spelling import nearest

    names = [*RULES, *(rule.name for rule in RULES.values())]
    like = nearest(word.upper(), names) if word.upper().startswith("TP") else nearest(word, names)
    hint = f"Did you mean {' or '.join(like)}?" if like else _LIST_HINT
    return Usage("Unknown rule", f"there is no rule {word}", hint=hint, where=option)


_LIST_HINT = "All rules are listed in docs/reference/rules.md. To explain one:\n"
_LIST_HINT += "    tpuctl check --explain TPU101"


def _explain(state: State, word: str) -> None:
    from tpuctl.preflight.rules import RULES, matching_codes
    from tpuctl.view.checks.findings import TextOutput
    from tpuctl.view.checks.rules import rule_text

    codes = sorted(matching_codes(word))
    if not codes:
        raise _unknown_rule(word, "--explain")
    rules = [RULES[code] for code in codes]

    def show() -> None:
        width = min(TextOutput.of(sys.stdout).width, 100)
        if len(rules) == 1:
            print(rule_text(rules[0], width))
            return
        for rule in rules:
            print(f"{rule.code} {rule.severity.value:<5} {rule.name}")

    state.answer(lambda: responses.checks.Rules(rules=rules), show)


def _require_alone(code: str, *, is_alone: bool) -> None:
    if not is_alone:
        raise _conflict(
            f"--explain {code} cannot be combined with other options or scripts", "--explain"
        )


def _conflict(detail: str, where: str) -> Usage:
    return Usage("Conflicting options", detail, hint="Leave one of them out.", where=where)
