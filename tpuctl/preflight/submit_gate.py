"""What a job is to run: found on this machine, and refused where it cannot or ought not be sent."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import Diagnostic, Refused, Usage
from tpuctl.preflight.findings import Finding, Report, Severity
from tpuctl.spelling import nearest

if TYPE_CHECKING:
    from tpuctl.model.installation import Installation
    from tpuctl.model.job import JobKind

__all__ = [
    "Runnable",
    "check_runnable",
    "check_script",
    "check_setup",
    "count_text",
    "diagnostic_of",
    "display_path",
    "other_interpreter",
    "refuse_home",
    "require_no_errors",
    "require_python",
    "runnable",
    "warning_for",
]

SOURCES = ("", "src")  # where a project keeps its packages; workers look there too
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
SUMMARY = "Finding of the check"


@dataclass(frozen=True)
class Runnable:
    """A script, a module or a command, and the folder that is shipped for it."""

    form: JobKind
    program: str  # the module's name, or the command's first word; empty for a script
    folder: Path
    file: Path | None = None  # the file of the folder that is started, where it is one


def runnable(program: str, form: JobKind = "script", folder: Path | None = None) -> Runnable:
    """What is meant, without a judgement on it.

    A script lies in the folder that is shipped; one that is not Python's, as its first line says,
    is a command. Modules and commands are those of `folder`, the current one by default.
    """
    if form == "script":
        script = Path(program)
        if other_interpreter(script):
            return Runnable("shell", f"./{script.name}", script.parent, script)
        return Runnable("script", "", script.parent, script)
    folder = folder or Path()
    if form == "module":
        return Runnable("module", program, folder, _module_file(program, folder))
    path = folder / program
    return Runnable("shell", program, folder, path if _is_path(program) else None)


def check_runnable(runnable: Runnable, installation: Installation) -> None:
    """Raise Usage where there is no such thing, Refused where it cannot run or ought not be sent.

    Packages installed for the job may provide a module; the image's packages are unknown here.
    """
    if runnable.form == "script":
        assert runnable.file is not None
        check_script(runnable.file)
        return
    refuse_home(runnable.folder, runnable.program)
    if runnable.form == "shell":
        _check_command(runnable)
    elif runnable.file is not None:
        require_python(runnable.file)
    else:
        _find_module(runnable.program, runnable.folder, installation)


def check_setup(installation: Installation, *, are_isolated: bool) -> None:
    """Raise Refused for a setup command where machines are not kept apart from this computer."""
    if installation.setup is not None and not are_isolated:
        raise Refused(
            "Setup commands are refused here",
            "this computer has no user namespaces: the local cloud's machines could not be kept "
            "from your files",
            hint="Take job.setup out for the rehearsal. Google's machines run it.",
            where="job.setup",
        )


# Scripts ------------------------------------------------------------------------------------------


def check_script(script: Path) -> None:
    """Raise Usage when there is no such file, Refused when it should not be sent: it is not valid
    Python though no first line says that another program runs it, or its folder, which is shipped
    with it, is the user's home.
    """
    if not script.is_file():
        kind = "does not exist"
        if script.exists():
            kind = "is a folder" if script.is_dir() else "is not a file"
        raise Usage("No such script", f"{script} {kind}", hint="Give the path of a Python file.")
    refuse_home(script.parent, str(script))
    if not other_interpreter(script):
        require_python(script)


def other_interpreter(script: Path) -> bool:
    """Whether the script's first line says that something else than Python runs it."""
    if not script.is_file():  # a pipe would wait for who writes into it
        return False
    try:
        with script.open("rb") as source:
            first = source.readline(256)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" not in first


def require_python(script: Path) -> None:
    """Raise Refused where it is not valid Python, as the Python running here knows it."""
    hint = "Mend it, then run it again. --no-check sends it as it is."
    try:
        with warnings.catch_warnings():  # of what is parsed: shown from Python 3.12 on
            warnings.simplefilter("ignore")
            ast.parse(script.read_bytes(), filename=str(script))
    except SyntaxError as error:
        if script.suffix != ".py":
            hint = f"Is it a program? Then run it as a command:\n    tpuctl run -- ./{script.name}"
        raise Refused(
            "Script is not valid Python",
            f"{error.msg}" + (f": {error.text.strip()}" if error.text else ""),
            hint=hint,
            where=f"{script}:{error.lineno or 1}",
        ) from None
    except ValueError as error:  # null bytes
        raise Refused(
            "Script is not valid Python",
            f"{script}: {error}",
            hint="The file is cut or no text: restore it from where it came, then\n"
            "    tpuctl check SCRIPT",
        ) from None


def refuse_home(folder: Path, where: str) -> None:
    """Raise Refused where the folder to ship is the user's home, or around it."""
    folder = folder.resolve()
    try:
        home = Path.home().resolve()
    except RuntimeError:  # it cannot be determined
        return
    if home.is_relative_to(folder):
        raise Refused(
            "Script lies in your home folder",
            f"all of {folder} would be shipped with it",
            hint="Give the script a folder of its own. --no-check ships it nevertheless.",
            where=where,
        )


# Modules ------------------------------------------------------------------------------------


def _module_file(name: str, folder: Path) -> Path | None:
    """The file that `python -m` would run, where it is in the folder."""
    parts = name.split(".")
    for sources in SOURCES:
        place = folder.joinpath(sources, *parts)
        for file in (place / "__main__.py", place.with_name(f"{place.name}.py")):
            if all(parts) and file.is_file():
                return file
    return None


def _find_module(name: str, folder: Path, installation: Installation) -> None:
    """Raise Usage that tells what is wrong with a name that is not in the folder."""
    parts = name.split(".")
    if name.endswith(".py") or not all(part.isidentifier() for part in parts):
        hint = "A module's name has dots and no ending:\n    tpuctl run -m package.train"
        if name.endswith(".py"):
            hint = f"Run the file itself:\n    tpuctl run {name}\n{hint}"
        raise Usage("Not a module's name", name or "it is empty", hint=hint, where="-m")
    for sources in SOURCES:
        root = folder / sources
        if (root / parts[0]).is_dir():
            raise _no_module(root, parts)
        if len(parts) > 1 and (root / f"{parts[0]}.py").is_file():
            detail = f"{parts[0]}.py is a file, not a package with {name.partition('.')[2]} in it"
            raise Usage(
                "No such module",
                detail,
                where="-m",
                hint=(
                    "Make it a package (a folder with __init__.py), or name the module as it is:\n"
                    f"    tpuctl run -m {parts[0]}"
                ),
            )
    if parts[0] in sys.stdlib_module_names or _is_installed(parts[0], folder, installation):
        return
    raise Usage(
        "No such module",
        f"{parts[0]} is neither in {_folder_text(folder)} nor among what is installed for the job",
        hint="Go to the folder that it is in. --no-check is for what the image brings.",
        where="-m",
    )


def _no_module(root: Path, parts: list[str]) -> Usage:
    place = root.joinpath(*parts)
    if place.is_dir():
        detail = f"{place / '__main__.py'} is missing, which is what would run"
        return Usage("Package cannot be run", detail, hint="Name a module in it.", where="-m")
    package = place.parent
    hint = ""
    if package.is_dir():
        names = sorted(file.stem for file in package.glob("*.py") if file.stem != "__init__")
        like = nearest(parts[-1], names)
        before = ".".join(parts[:-1])
        hint = f"Did you mean {', '.join(f'{before}.{name}' for name in like)}?" if like else ""
    return Usage("No such module", f"there is no {place}.py", hint=hint, where="-m")


def _is_installed(top: str, folder: Path, installation: Installation) -> bool:
    """Whether what is installed may bring a package of that name."""
    names = set(_names(folder, installation))
    # What only a build backend knows may have any name.
    return installation.project is not None or "" in names or _normal(top) in names


def _names(folder: Path, installation: Installation) -> Iterator[str]:
    lines = list(installation.dependencies)
    if installation.requirements is not None:
        text = (folder / installation.requirements).read_text("utf-8", "replace")
        lines += [line.strip() for line in text.splitlines()]
    if installation.wheels is not None:
        lines += [wheel.name.split("-")[0] for wheel in (folder / installation.wheels).iterdir()]
    for line in lines:
        match = NAME.match(line)
        if match:
            yield _normal(match[0])
        elif line and not line.startswith("#"):
            yield ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# Commands -----------------------------------------------------------------------------------


def _is_path(program: str) -> bool:
    """Whether it names a file of the folder, not one that is looked for or is the worker's."""
    return "/" in program and not Path(program).is_absolute()


def _check_command(runnable: Runnable) -> None:
    program, folder = runnable.program, runnable.folder
    if not program.strip():
        raise Usage("Nothing to run", "the command is empty", hint=_COMMANDS)
    if runnable.file is None:
        if (folder / program).is_file() and shutil.which(program) is None:
            raise Usage(
                "No such program",
                f"{program} is in {_folder_text(folder)}, which is not on PATH",
                hint=f"Give its path:\n    tpuctl run -- ./{program}",
            )
        if " " in program:
            detail = f"{program!r} is one word, and no program has such a name"
            raise Usage("No such program", detail, hint=_COMMANDS)
        return
    _check_program(runnable.file, program, folder)


def _check_program(file: Path, program: str, folder: Path) -> None:
    if not file.is_file():
        kind = "does not exist"
        if file.exists():
            kind = "is a folder" if file.is_dir() else "is not a file"
        hint = _COMMANDS if " " in program else ""
        raise Usage("No such program", f"{program} {kind} (in {_folder_text(folder)})", hint=hint)
    if not file.resolve().is_relative_to(folder.resolve()) and not file.is_symlink():
        detail = f"{program} is not below {folder.resolve()}"
        raise Usage("Program is outside of the folder to ship", detail, hint="Go to its folder.")
    if not file.stat().st_mode & 0o100:
        raise Refused(
            "Program may not be executed",
            f"{program} has no permission for it",
            hint=f"Give it:\n    chmod +x {program}",
        )
    with file.open("rb") as source:
        first = source.readline(256)
    if first.startswith(b"#!") and first.rstrip(b"\n").endswith(b"\r"):
        raise Refused(
            "Script has the line ends of Windows",
            f"{program}: no worker has a program of the name in its first line",
            hint=f"Take them out:\n    sed -i 's/\\r$//' {program}",
        )
    if not first.startswith((b"#!", b"\x7fELF")):
        raise Refused(
            "Script does not say what runs it",
            f"{program} begins without #!",
            hint="Begin it with a line like\n    #!/bin/bash",
        )


_COMMANDS = (
    "Every word of a command is one argument, or a shell takes all:\n"
    "    tpuctl run -- ./train.sh --steps 100\n"
    "    tpuctl run -- bash -c './prepare.sh && ./train.sh'"
)


def _folder_text(folder: Path) -> str:
    return "the current folder" if folder == Path() else str(folder)


# What the check found -----------------------------------------------------------------------------


def require_no_errors(report: Report) -> None:
    """Raise Refused with every error of a report; nothing where there is none."""
    if not report.errors:
        return
    refused = Refused("Script will not run on a TPU")
    code = report.errors[0].code
    last = Diagnostic(
        "Not sent",
        f"{count_text(report)} in {len(report.files)} file{'s' * (len(report.files) != 1)}",
        f"Mend it, or end a line that is right with\n    # tpuctl: ignore[{code}]\n"
        "--no-check sends it as it is.",
    )
    refused.diagnostics = (*map(diagnostic_of, report.errors), last)
    raise refused


def warning_for(report: Report, command: str) -> Diagnostic | None:
    """In short what is no error; `command` shows it at length. None where there is nothing."""
    if not report.findings:
        return None
    hint = f"See where, and what to write instead:\n    {command}"
    return Diagnostic("Costs and risks on a TPU", count_text(report), hint)


def diagnostic_of(finding: Finding) -> Diagnostic:
    """A finding as a diagnostic."""
    from tpuctl.preflight.rules import RULES

    rule = RULES.get(finding.code)
    summary = rule.summary.rstrip(".") if rule is not None else SUMMARY
    where = f"{display_path(finding.path)}:{finding.line}:{finding.column + 1}"
    return Diagnostic(f"{finding.code} {summary}", finding.message, finding.hint, where)


def count_text(report: Report) -> str:
    """`2 errors, 1 cost`, without what there is none of."""
    numbers = [(report.count(severity), severity.value) for severity in Severity]
    return ", ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in numbers if count)


def display_path(path: Path) -> str:
    """Relative to the current folder, where that is shorter; without what is no text."""
    whole = os.path.abspath(path)  # noqa: PTH100 - links are not followed
    display = min((os.path.relpath(whole), whole), key=len)
    return display.encode("utf-8", "backslashreplace").decode()
