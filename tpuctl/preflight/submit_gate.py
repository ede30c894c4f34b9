"""Resolves the program of a job and refuses to submit it if it cannot or should not run."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.errors import Diagnostic, Refused, Usage
from tpuctl.files import exists, is_file, is_folder, read_file
from tpuctl.preflight.findings import Finding, Report, Severity
from tpuctl.spelling import nearest
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.model.jobs.installation import Installation
    from tpuctl.model.jobs.job import JobKind

SOURCES = ("", "src")  # folders of packages, as on workers
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
SUMMARY = "Finding of the check"
MAX_NOTEBOOK_BYTES = 1 << 26
COMPILED = (".pyc", ".pyo")
DATA = (  # suffixes of files that may be valid Python by accident: `numpy` is an expression
    *(".cfg", ".csv", ".html", ".ini", ".json", ".jsonl", ".lock", ".log", ".md", ".rst", ".toml"),
    *(".tsv", ".txt", ".xml", ".yaml", ".yml"),
)


class Runnable(NamedTuple):
    """A script, module or command, and the folder to ship with it."""

    form: JobKind
    program: str  # the module name or the command's first word; empty for a script
    folder: Path
    file: Path | None = None  # the file to start, if it is in the folder


def runnable(program: str, form: JobKind = "script", folder: Path | None = None) -> Runnable:
    """Resolve a program without validating it.

    A script's folder is shipped; a script for another interpreter is run as a command. Modules and
    commands are looked up in `folder`, by default the current folder.
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


def check_runnable(
    runnable: Runnable, installation: Installation, *, is_newer_python: bool = False
) -> None:
    """Raise Usage if the program is not found, Refused if it cannot or should not be submitted.

    Packages installed for the job may provide a module; the image's packages are unknown here. If
    `is_newer_python`, the machines may be able to run what cannot be parsed here.
    """
    if runnable.form == "script":
        assert runnable.file is not None
        check_script(runnable.file, is_newer_python=is_newer_python)
        return
    refuse_home(runnable.folder, runnable.program)
    if runnable.form == "shell":
        _check_command(runnable)
    elif runnable.file is not None:
        if not is_newer_python:
            require_python(runnable.file)
    else:
        _find_module(runnable.program, runnable.folder, installation)


def check_setup(installation: Installation, *, are_isolated: bool) -> None:
    """Raise Refused for a setup command if machines are not isolated from this computer."""
    if installation.setup is not None and not are_isolated:
        raise Refused(
            "Setup commands are disabled",
            "this computer has no user namespaces, so machines of the local cloud are not "
            "isolated from your files",
            hint="Remove job.setup for the rehearsal. On Google Cloud it runs.",
            where="job.setup",
        )


def check_wheels(folder: Path, installation: Installation, architecture: str) -> None:
    """Raise Refused if the wheels to install from have a package for other machines only.

    Workers run Linux on this architecture, named as by `platform.machine()` there. A folder may
    have wheels for several kinds of machines, of which pip chooses.
    """
    if installation.wheels is None:
        return
    by_package: dict[str, list[str]] = {}
    for wheel in sorted((folder / installation.wheels).glob("*.whl")):
        by_package.setdefault(_normal(wheel.name.partition("-")[0]), []).append(wheel.name)
    unusable = [
        names[0]
        for names in by_package.values()
        if not any(_is_for(name, architecture) for name in names)
    ]
    if not unusable:
        return
    more = f" and {len(unusable) - 1} more" if len(unusable) > 1 else ""
    verb = "are" if more else "is"
    raise Refused(
        "Wheels for another architecture",
        f"{unusable[0]}{more} {verb} not for the workers, which run Linux on {architecture}",
        hint="Download those for the workers, for example\n"
        f"    pip download --only-binary=:all: --platform manylinux2014_{architecture} "
        f"-d {installation.wheels} …",
        where="job.wheels",
    )


def _is_for(wheel: str, architecture: str) -> bool:
    """Whether a wheel is for Linux with glibc on this architecture, by the last part of its name
    (packaging.python.org, "Platform compatibility tags")."""
    tags = wheel.removesuffix(".whl").rpartition("-")[2].split(".")
    linux = re.compile(rf"(?:many)?linux.*_{re.escape(architecture)}")
    return any(tag == "any" or linux.fullmatch(tag) for tag in tags)


# Scripts ------------------------------------------------------------------------------------------


def check_script(script: Path, *, is_newer_python: bool = False) -> None:
    """Raise Usage if the file does not exist, Refused if it should not be submitted.

    That is: it is not valid Python and does not name another interpreter, or its folder, which is
    shipped with it, is the user's home.
    """
    if not is_file(script):
        kind = "does not exist"
        if exists(script):
            kind = "is a folder" if script.is_dir() else "is not a file"
        hint = "Pass the path of a Python file."
        if is_file(script / "__main__.py"):
            hint += f" This folder has one:\n    tpuctl run {shlex.quote(f'{script}/__main__.py')}"
        raise Usage("Script not found", f"{script} {kind}", hint=hint)
    refuse_notebook(script)
    refuse_home(script.parent, str(script))
    if not is_newer_python and not other_interpreter(script):
        require_python(script)


def refuse_notebook(path: Path) -> None:
    """Raise Usage for a notebook, whatever the file's name: to Python it is an expression, or a
    NameError of `null`."""
    is_renamed = path.suffix != ".ipynb"
    if is_folder(path) or (is_renamed and not _is_notebook(path)):
        return
    name = shlex.quote(str(path))
    hint = f"Convert it to a script:\n    jupyter nbconvert --to script {name}"
    if is_renamed:
        notebook = shlex.quote(str(path.with_suffix(".ipynb")))
        hint = hint.replace(
            f"    jupyter nbconvert --to script {name}", f"    mv {name} {notebook}"
        )
        hint += f"\n    jupyter nbconvert --to script {notebook}"
    raise Usage("Not a script", f"{path} is a notebook", hint=hint)


def _is_notebook(path: Path) -> bool:
    """Whether a file's content is that of a notebook (nbformat.readthedocs.io)."""
    try:
        text = read_file(path, MAX_NOTEBOOK_BYTES)
        if text.lstrip()[:1] != b"{" or b'"nbformat"' not in text:
            return False
        content = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"cells", "nbformat"} <= content.keys()


def other_interpreter(script: Path) -> bool:
    """Whether the script's first line names an interpreter other than Python."""
    if not is_file(script):  # opening a pipe would block
        return False
    try:
        with script.open("rb") as source:
            first = source.readline(256)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" not in first


def require_python(script: Path) -> None:
    """Raise Refused if it is not valid for the Python version that runs tpuctl."""
    hint = "Fix it and run again, or submit it unchecked with --no-check."
    if script.suffix in (*COMPILED, *DATA):
        kind = "compiled Python, which other versions cannot run"
        hint = "Pass the source file, whose name ends with .py."
        if script.suffix in DATA:
            kind = f"a {script.suffix} file"
            hint = f"If it is a program, run it as a command:\n    {_as_program(script)}"
        raise Refused("Script is not valid Python", f"{script} is {kind}", hint=hint)
    try:
        with warnings.catch_warnings():  # about the user's code; shown since Python 3.12
            warnings.simplefilter("ignore")
            ast.parse(script.read_bytes(), filename=str(script))
    except SyntaxError as error:
        if script.suffix != ".py":
            hint = f"If it is a program, run it as a command:\n    {_as_program(script)}"
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
            hint="The file is corrupt or not a text file. Restore it, then run\n"
            "    tpuctl check SCRIPT",
        ) from None


def _as_program(file: Path) -> str:
    """The command that runs a file of the current folder as a program."""
    path = file if file.is_absolute() else f"./{file}"
    return f"tpuctl run -- {shlex.quote(str(path))}"


def refuse_home(folder: Path, where: str) -> None:
    """Raise Refused if the folder to ship is or contains the user's home."""
    folder = folder.resolve()
    try:
        home = Path.home().resolve()
    except RuntimeError:  # it cannot be determined
        return
    if home.is_relative_to(folder):
        raise Refused(
            "Script is in your home folder",
            f"all of {folder} would be uploaded with it",
            hint="Move the script to a separate folder, or use --no-check to upload it anyway.",
            where=where,
        )


# Modules ------------------------------------------------------------------------------------


def _module_file(name: str, folder: Path) -> Path | None:
    """The file that `python -m` would run, if it is in the folder."""
    parts = name.split(".")
    for sources in SOURCES:
        module_path = folder.joinpath(sources, *parts)
        for file in (module_path / "__main__.py", module_path.with_name(f"{module_path.name}.py")):
            if all(parts) and file.is_file():
                return file
    return None


def _find_module(name: str, folder: Path, installation: Installation) -> None:
    """Raise Usage if a module is neither in the folder nor installed for the job."""
    parts = name.split(".")
    for notebook in (folder / name, folder.joinpath(*parts).with_suffix(".ipynb")):
        if notebook.suffix == ".ipynb" and notebook.is_file():
            refuse_notebook(notebook)
    if name.endswith(".py") or not all(part.isidentifier() for part in parts):
        hint = "Write a module name with dots and without .py:\n    tpuctl run -m package.train"
        if name.endswith(".py"):
            hint = f"Run the file itself:\n    tpuctl run {shlex.quote(name)}\n{hint}"
        raise Usage("Invalid module name", name or "it is empty", hint=hint, where="-m")
    for sources in SOURCES:
        root = folder / sources
        if (root / parts[0]).is_dir():
            raise _no_module(root, parts)
        if len(parts) > 1 and (root / f"{parts[0]}.py").is_file():
            detail = (
                f"{parts[0]}.py is a file, not a package that contains {name.partition('.')[2]}"
            )
            raise Usage(
                "No such module",
                detail,
                where="-m",
                hint=(
                    "Make it a package (a folder with __init__.py), or run the module itself:\n"
                    f"    tpuctl run -m {parts[0]}"
                ),
            )
    if parts[0] in sys.stdlib_module_names or _is_installed(parts[0], folder, installation):
        return
    raise Usage(
        "No such module",
        f"{parts[0]} is neither in {_folder_text(folder)} nor installed for the job",
        hint="Change to its folder. If it is a module of the image, use --no-check.",
        where="-m",
    )


def _no_module(root: Path, parts: list[str]) -> Usage:
    module_path = root.joinpath(*parts)
    if module_path.is_dir():
        detail = f"{module_path / '__main__.py'} is missing"
        return Usage("Package cannot be run", detail, hint="Run one of its modules.", where="-m")
    package = module_path.parent
    hint = ""
    if package.is_dir():
        names = sorted(file.stem for file in package.glob("*.py") if file.stem != "__init__")
        like = nearest(parts[-1], names)
        before = ".".join(parts[:-1])
        hint = f"Did you mean {', '.join(f'{before}.{name}' for name in like)}?" if like else ""
    return Usage("No such module", f"{module_path}.py does not exist", hint=hint, where="-m")


def _is_installed(top: str, folder: Path, installation: Installation) -> bool:
    """Whether the packages installed for the job may provide a module of that name."""
    names = set(_names(folder, installation))
    # A project's modules are known only to its build backend.
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
    """Whether it is a relative path, not a program on the worker's PATH or file system."""
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
                hint=f"Pass its path:\n    {_as_program(Path(program))}",
            )
        if " " in program:
            detail = f"{program!r} is a single argument, not a program with arguments"
            raise Usage("No such program", detail, hint=_COMMANDS)
        return
    _check_program(runnable.file, program, folder)


def _check_program(file: Path, program: str, folder: Path) -> None:
    if not is_file(file):
        kind = "does not exist"
        if exists(file):
            kind = "is a folder" if file.is_dir() else "is not a file"
        hint = _COMMANDS if " " in program else ""
        raise Usage("No such program", f"{program} {kind} (in {_folder_text(folder)})", hint=hint)
    if not file.resolve().is_relative_to(folder.resolve()) and not file.is_symlink():
        detail = f"{program} is not below {folder.resolve()}"
        raise Usage("Program is outside the uploaded folder", detail, hint="Change to its folder.")
    if not file.stat().st_mode & 0o100:
        raise Refused(
            "Program is not executable",
            f"{program} has no execute permission",
            hint=f"Make it executable:\n    chmod +x {shlex.quote(program)}",
        )
    with file.open("rb") as source:
        first = source.readline(256)
    if first.startswith(b"#!") and first.rstrip(b"\n").endswith(b"\r"):
        raise Refused(
            "Script has Windows line endings",
            f"{program}: the interpreter name in its first line ends with a carriage return",
            hint=f"Convert them:\n    sed -i 's/\\r$//' {shlex.quote(program)}",
        )
    if not first.startswith((b"#!", b"\x7fELF")):
        raise Refused(
            "Script has no interpreter line",
            f"{program} does not start with #!",
            hint="Start it with a line such as\n    #!/bin/bash",
        )


_COMMANDS = (
    "Pass each argument as a separate word, or the whole command to a shell:\n"
    "    tpuctl run -- ./train.sh --steps 100\n"
    "    tpuctl run -- bash -c './prepare.sh && ./train.sh'"
)


def _folder_text(folder: Path) -> str:
    return "the current folder" if folder == Path() else str(folder)


# Findings -----------------------------------------------------------------------------------------


def require_no_errors(report: Report) -> None:
    """Raise Refused with every error of a report, if there are any."""
    if not report.errors:
        return
    refused = Refused("Script will not run on a TPU")
    code = report.errors[0].code
    last = Diagnostic(
        "Script was not submitted",
        f"{count_text(report)} in {counted(len(report.files), 'file')}",
        f"Fix it, or end a line that is correct with\n    # tpuctl: ignore[{code}]\n"
        "To skip the check, use --no-check.",
    )
    refused.diagnostics = (*map(diagnostic_of, report.errors), last)
    raise refused


def warning_for(report: Report, command: str) -> Diagnostic | None:
    """A summary of costs and risks, with the command that shows them; None without findings."""
    if not report.findings:
        return None
    hint = f"To see them and how to fix them, run\n    {command}"
    return Diagnostic("Costs or risks on a TPU", count_text(report), hint)


def diagnostic_of(finding: Finding) -> Diagnostic:
    """A finding as a diagnostic."""
    from tpuctl.preflight.rules import RULES

    rule = RULES.get(finding.code)
    summary = rule.summary.rstrip(".") if rule is not None else SUMMARY
    where = f"{display_path(finding.path)}:{finding.line}:{finding.column + 1}"
    return Diagnostic(f"{finding.code} {summary}", finding.message, finding.hint, where)


def count_text(report: Report) -> str:
    """The number of findings by severity, such as `2 errors, 1 cost`, without zeros."""
    numbers = [(report.count(severity), severity.value) for severity in Severity]
    return ", ".join(counted(count, name) for count, name in numbers if count)


def display_path(path: Path) -> str:
    """A path relative to the current folder if that is shorter, with invalid bytes escaped."""
    absolute = os.path.abspath(path)  # noqa: PTH100 - does not follow links
    display = min((os.path.relpath(absolute), absolute), key=len)
    return display.encode("utf-8", "backslashreplace").decode()
