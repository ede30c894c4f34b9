"""TPU000 not-python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.findings import Finding, Rule, Severity, Target, python_version

if TYPE_CHECKING:
    from tpuctl.interpreters import Interpreter

RULE = Rule(
    code="TPU000",
    name="not-python",
    severity=Severity.error,
    summary="File is not valid Python or cannot be read",
    rationale=(
        "The script would fail with a SyntaxError on the worker, after the machines were created. "
        "No other rule applies to such a file. tpuctl parses it with the Python version that "
        "tpuctl runs on, in the encoding that the file declares, or UTF-8. If the job's Python "
        "is newer than that, one of its version on this computer decides; without one, it is a "
        "risk."
    ),
    bad="""\
import tensorflow as tf

if tf.executing_eagerly()
    print("eager")
""",
    good="""\
import tensorflow as tf

if tf.executing_eagerly():
    print("eager")
""",
)


# Prints the line and message of the first syntax error in a file, as a newer Python sees it.
PARSE = """
import ast, sys, warnings
warnings.simplefilter("ignore")
try:
    ast.parse(open(sys.argv[1], "rb").read())
except SyntaxError as error:
    print(error.lineno or 1, error.msg)
"""
SECONDS = 20


def find(project: Project, target: Target) -> Iterator[Finding]:
    newer = [
        minor
        for minor in target.pythons or (target.python,)
        if python_version(minor) > sys.version_info[:2]
    ]
    running = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    for unreadable in project.unreadable:
        severity, line = RULE.severity, unreadable.line
        message = f"not valid {running}: {unreadable.message}"
        if target.has_newer_python_than(sys.version_info[:2]):
            from tpuctl import interpreters  # imports asyncio

            severity = Severity.risk
            message = f"not read, as it is not valid {running}, which runs tpuctl, and "
            message += f"{target.python_text}: {unreadable.message}"
            interpreter = interpreters.find(newer)
            answer = _parsed_by(interpreter, unreadable.path) if interpreter is not None else None
            if interpreter is not None and answer:
                number, _, text = answer.partition(" ")
                severity, line = RULE.severity if len(newer) == 1 else severity, int(number)
                message = f"not valid Python {interpreter.minor}: {text}"
            elif interpreter is not None and answer is not None:
                message = f"not checked: it is valid Python {interpreter.minor}, but tpuctl runs "
                message += f"on {running}, which cannot read it: {unreadable.message}"
        yield Finding(RULE.code, severity, unreadable.path, line, 0, message)


def _parsed_by(interpreter: Interpreter, file: Path) -> str | None:
    """The line and message of the first syntax error, empty without one; None if unknown."""
    import subprocess

    command = [interpreter.path, "-I", "-c", PARSE, str(file)]
    try:
        result = subprocess.run(
            command, capture_output=True, check=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode("utf-8", "replace").strip()
