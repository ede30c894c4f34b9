"""TPU801 not-uploaded."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tpuctl.files import is_lfs_pointer
from tpuctl.model.scripts.requirement_files import required
from tpuctl.preflight.analysis.program.source import Module, NotOnPath, Project, Unavailable
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, argument
from tpuctl.preflight.analysis.requirements import installed
from tpuctl.preflight.analysis.source_findings import callee_text, finding_at, quoted
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU801",
    name="not-uploaded",
    severity=Severity.risk,
    summary="A file that the job would not have on the workers",
    rationale=(
        "A job gets the files of its folder, except those that git or `.tpuctlignore` ignores, "
        "that `job.exclude` names, and in which programs keep credentials. Whatever else the "
        "script imports or reads exists on this computer only. The finding names the rule that "
        "takes the file. An import that always runs is an error. A file of which Git LFS has not "
        "downloaded the content is reported, too."
    ),
    bad="""\
import json

with open("/Users/me/project/labels.json") as file:
    labels = json.load(file)
""",
    good="""\
import json

with open("labels.json") as file:  # next to the script, and uploaded with it
    labels = json.load(file)
""",
)

# Names of functions and methods that read the file, or the folder, that their first argument names.
READER = re.compile(
    r"open|read|load|imread|from_?file|from_pretrained|genfromtxt|File|(?:open|read|load)_\w+"
    r"|load(?:txt|tif|mat)|\w*Dataset|from_json_file|dotenv_values|Path"
)
PATH_READERS = {"open", "read_text", "read_bytes"}  # methods of paths
DOTENV = {"dotenv.load_dotenv", "dotenv.dotenv_values"}  # read .env by default
LFS_HINT = "Download the content:\n    git lfs pull"
MAX_NAMES = 5  # in a message
MODES = {"open", "File"}  # have an argument `mode`
WRITING = set("wax")
OTHER_SYSTEM = re.compile(r"/Users/|[A-Za-z]:[\\/]")  # macOS, Windows


def find(project: Project, target: Target) -> Iterator[Finding]:
    for of_script in project.by_script if project.upload is not None else ():
        yield from _script(of_script)
        yield from _pointers(of_script)
        yield from _imports(of_script, target)
    for module in project:
        for call in module.calls:
            yield from _read(project, module, call)


def _script(project: Project) -> Iterator[Finding]:
    path = project.script.path
    if project.upload is None or not path.is_relative_to(project.root):
        return
    exclusion = project.upload.exclusion_of(path)
    if exclusion is not None:
        message = f"the script is not uploaded: {exclusion.rule}"
        yield Finding(RULE.code, Severity.error, path, 1, 0, message, exclusion.remedy)


def _pointers(project: Project) -> Iterator[Finding]:
    """A finding at the script for all files whose content Git LFS has not downloaded."""
    names = project.upload.lfs_pointers() if project.upload is not None else ()
    if names:
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        message = f"pointers of Git LFS instead of files: {', '.join(names[:MAX_NAMES])}{more}"
        path = project.script.path
        yield Finding(RULE.code, RULE.severity, path, 1, 0, message, LFS_HINT)


def _imports(project: Project, target: Target) -> Iterator[Finding]:
    if not project.unavailable:
        return
    packages = {package.name for package in required(project.root, target.requirements)}
    packages |= {install.package.name for install in installed(project)}
    own: set[str] = set()  # packages that the script is in, reported once
    for file in project.unavailable:
        top = file.name.partition(".")[0]
        is_outside = not file.path.is_relative_to(project.root)
        package = file.name.partition(".")[0].replace("_", "-").lower()  # probably
        if _is_type_checking(file) or (is_outside and package in packages):
            continue
        if top in own:
            continue
        if isinstance(file.exclusion, NotOnPath):
            command = _module_command(project.script, file)
            if command and not packages:
                own.add(top)
                yield _own_package(project, target, file, command)
            continue
        is_certain = file.module is project.script and not target.installs_more and not is_outside
        severity, message = Severity.error, f"{quoted(file.module, file.statement)} imports "
        message += f"{_display(project, file.path)}, which is not uploaded: {file.exclusion.rule}"
        if not is_certain or _is_conditional(file):
            severity = Severity.risk
            message += "; an error if nothing else provides it"
        yield finding_at(
            RULE, file.module, file.statement, message, file.exclusion.remedy, severity=severity
        )


def _module_command(script: Module, file: Unavailable) -> str:
    """The command that runs a script as a module of a package that it is in; empty if only the
    package's name is imported, which may be an installed one's."""
    for package in script.path.parents:
        if package.name == file.name.partition(".")[0] and file.path.parent.is_relative_to(package):
            if file.path == package / "__init__.py":
                return ""
            folder = package.parent.parent if package.parent.name == "src" else package.parent
            parts = script.path.relative_to(package.parent).with_suffix("").parts
            command = f"    tpuctl run -m {'.'.join(parts).removesuffix('.__main__')}"
            if all(part.isidentifier() for part in parts):
                enter = "" if folder == Path.cwd() else f"    cd {shlex.quote(str(folder))}\n"
                return enter + command
    return ""


def _own_package(project: Project, target: Target, file: Unavailable, command: str) -> Finding:
    """The finding for a script that imports the package that it is in."""
    severity, top = Severity.error, file.name.partition(".")[0]
    message = f"{quoted(file.module, file.statement)} raises ModuleNotFoundError: the folder that "
    message += f"contains {top} is not on the path of a script in it"
    if file.module is not project.script or target.installs_more or _is_conditional(file):
        severity = Severity.risk
        message += ", if nothing else provides it"
    hint = f"Run it as a module:\n{command}"
    return finding_at(RULE, file.module, file.statement, message, hint, severity=severity)


def _is_type_checking(file: Unavailable) -> bool:
    return any(
        isinstance(node, ast.If) and "TYPE_CHECKING" in file.module.segment(node.test)
        for node in file.module.ancestors(file.statement)
    )


def _is_conditional(file: Unavailable) -> bool:
    kinds = (*FUNCTIONS, ast.If, ast.Try, ast.While, ast.For, ast.Match)
    return any(isinstance(node, kinds) for node in file.module.ancestors(file.statement))


def _read(project: Project, module: Module, call: ast.Call) -> Iterator[Finding]:
    """A finding for a file that a call reads, if it exists on this computer only."""
    for text in _paths(project, module, call):
        if OTHER_SYSTEM.match(text) or (Path(text).is_absolute() and _is_users(Path(text))):
            message = f"`{callee_text(module, call)}` reads {text}, a path of this computer"
            hint = "Put the file next to the script and use a relative path, or use the bucket."
            yield finding_at(RULE, module, call, message, hint)
            return
        # The job's working directory is the uploaded folder.
        path = project.root / text
        if Path(text).is_absolute() or not _exists(path):
            continue
        exclusion = project.upload.exclusion_of(path) if project.upload is not None else None
        if exclusion is not None:
            message = f"`{callee_text(module, call)}` reads {text}, which is not uploaded: "
            yield finding_at(RULE, module, call, message + exclusion.rule, exclusion.remedy)
            return
        if _is_pointer(path):
            message = f"{text} is a pointer of Git LFS, not the content"
            yield finding_at(RULE, module, call, message, LFS_HINT)
            return


def _paths(project: Project, module: Module, call: ast.Call) -> Iterator[str]:
    """The paths that a call reads, as far as they are known."""
    name = module.names.of(call.func) or ""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]
    if not last and isinstance(call.func, ast.Name):
        last = call.func.id
    if name in DOTENV and not call.args and not call.keywords:
        yield ".env"
        return
    path: ast.expr | None = call.args[0] if call.args else None
    if last in PATH_READERS and isinstance(call.func, ast.Attribute) and not name:
        path = call.func.value  # Path("labels.json").open()
    elif last == "Path" or not READER.fullmatch(last):
        return
    mode = argument(call, 1 if path in call.args else 0, "mode")
    if last in MODES and isinstance(mode, ast.Constant) and WRITING & {*str(mode.value)}:
        return
    for constant in HostCode.of(project).constants(module, path):
        if constant.is_complete and constant.text and "\0" not in constant.text:
            yield constant.text


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that is too long
        return False


def _is_users(path: Path) -> bool:
    """Whether a file is in the home of the user on this computer."""
    try:
        return path.is_relative_to(Path.home()) and path.exists()
    except (OSError, RuntimeError):
        return False


def _is_pointer(path: Path) -> bool:
    try:
        if not path.is_file():  # opening a pipe would block
            return False
        with path.open("rb") as source:
            return is_lfs_pointer(source, path.stat().st_size)
    except OSError:
        return False


def _display(project: Project, path: Path) -> str:
    return (
        path.relative_to(project.root).as_posix()
        if path.is_relative_to(project.root)
        else str(path)
    )
