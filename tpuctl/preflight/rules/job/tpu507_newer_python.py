"""TPU507 newer-python."""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from tpuctl.catalog import runtimes
from tpuctl.model.scripts.lock_files import form_of
from tpuctl.model.scripts.requirement_files import PROJECT, allows
from tpuctl.model.scripts.toml_documents import parse_toml
from tpuctl.preflight.analysis.framework_wheels import python_minors
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.requirements import (
    metadata_of,
    once_per_folder,
    requirements_file,
)
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow.versioned_names import is_guarded
from tpuctl.preflight.findings import Finding, Rule, Severity, Target, python_version

RULE = Rule(
    code="TPU507",
    name="newer-python",
    severity=Severity.error,
    summary="Python that is newer than the job's",
    rationale=(
        "The base runtimes of the Cloud TPU API have Python 3.10, and so have Compute Engine's "
        "images, except for that of TPU7x, which has 3.12. Syntax of a later version is a "
        "SyntaxError there, and names that its standard library does not have yet an ImportError "
        "or AttributeError. What is imported in a `try` that catches the error, or depending on "
        "`sys.version_info`, is not reported. In a function, in a module that is not always "
        "imported, or if `job.setup` may install another Python, it is a risk. The Python of "
        "other runtimes is not known: nothing is reported for them. A job that asks for another "
        "Python in `job.python`, in its script's metadata, `.python-version`, or `requires-python` "
        "brings it: then that one counts, and of several, the oldest that is newer than the "
        "image's."
    ),
    bad="""\
import tomllib
from pathlib import Path

settings = tomllib.loads(Path("settings.toml").read_text())
""",
    good="""\
try:
    import tomllib
except ImportError:
    import tomli as tomllib
from pathlib import Path

settings = tomllib.loads(Path("settings.toml").read_text())
""",
    target=Target(image="tpu-ubuntu2204-base"),
)
OLDER = ("tpu-vm-base", "tpu-vm-v4-base", "tpu-vm-cos-stable")  # whose Python is not documented
Version = tuple[int, int]
# Names by the version that added them (docs.python.org, "New in version" of each; those of 3.11 to
# 3.13 were also compared with the interpreters). A module of its own stands alone.
ADDED: dict[Version, str] = {
    (3, 11): """
        tomllib wsgiref.types importlib.resources.abc BaseExceptionGroup ExceptionGroup
        asyncio.{Barrier,BrokenBarrierError,Runner,TaskGroup,Timeout,timeout,timeout_at}
        contextlib.chdir datetime.UTC ctypes.{BigEndianUnion,LittleEndianUnion} hashlib.file_digest
        enum.{CONFORM,CONTINUOUS,EJECT,EnumCheck,EnumType,FlagBoundary,KEEP,NAMED_FLAGS,ReprEnum}
        enum.{STRICT,StrEnum,UNIQUE,global_enum,member,nonmember,property,show_flag_values,verify}
        http.HTTPMethod inspect.{getmembers_static,ismethodwrapper} locale.getencoding
        logging.getLevelNamesMapping math.{cbrt,exp2} operator.call os.login_tty re.NOFLAG
        sqlite3.Blob sys.exception unittest.enterModuleContext
        typing.{LiteralString,Never,NotRequired,Required,Self,TypeVarTuple,Unpack,assert_never}
        typing.{assert_type,clear_overloads,dataclass_transform,get_overloads,reveal_type}
    """,
    (3, 12): """
        asyncio.{create_eager_task_factory,eager_task_factory} calendar.{Day,Month}
        collections.abc.Buffer csv.{QUOTE_NOTNULL,QUOTE_STRINGS}
        inspect.{BufferFlags,getasyncgenlocals,getasyncgenstate,markcoroutinefunction}
        itertools.batched logging.{getHandlerByName,getHandlerNames} math.sumprod
        os.{setns,unshare} os.path.{isjunction,splitroot} random.binomialvariate
        sys.{activate_stack_trampoline,deactivate_stack_trampoline,monitoring}
        threading.{setprofile_all_threads,settrace_all_threads} types.get_original_bases
        typing.{TypeAliasType,override}
    """,
    (3, 13): """
        asyncio.{EventLoop,QueueShutDown} base64.{z85decode,z85encode} copy.replace enum.EnumDict
        PythonFinalizationError configparser.UNNAMED_SECTION glob.translate math.fma
        mimetypes.guess_file_type os.{process_cpu_count,timerfd_create}
        pathlib.UnsupportedOperation queue.ShutDown re.PatternError statistics.{kde,kde_random}
        typing.{NoDefault,ReadOnly,TypeIs,get_protocol_members,is_protocol} types.CapsuleType
        unittest.mock.ThreadingMock warnings.deprecated
    """,
    (3, 14): """
        annotationlib compression concurrent.interpreters string.templatelib pathlib.types
        concurrent.futures.InterpreterPoolExecutor functools.Placeholder
        heapq.{heapify_max,heappop_max,heappush_max,heappushpop_max,heapreplace_max}
        operator.{is_none,is_not_none} typing.evaluate_forward_ref uuid.{uuid6,uuid7,uuid8}
    """,
}


def _names() -> dict[str, Version]:
    names: dict[str, Version] = {}
    for version, text in ADDED.items():
        for word in text.split():
            prefix, _, rest = word.partition("{")
            names |= {prefix + name: version for name in rest.rstrip("}").split(",")}
    return names


NAMES = _names()
BUILTINS = {name: version for name, version in NAMES.items() if name[0].isupper()}
Use = tuple[ast.AST, str, Version]


def find(project: Project, target: Target) -> Iterator[Finding]:
    python = _python(target)
    if python is None:
        return
    newest = python_version(target.pythons[-1]) if target.brings_python else python
    yield from _required(project, target)
    always: set[str] = set()
    for module in project:
        key = RULE.code, project.root
        if key not in module.cache:
            module.cache[key] = list(_uses(module, project.root))
        for node, feature, version in module.cache[key]:
            if version <= python:
                continue
            always = always or _always_imported(project)
            is_certain = module.name in always and not target.installs_more and version > newest
            if isinstance(node, (ast.expr, ast.stmt)) and "syntax" not in feature:
                if is_guarded(module, node) or _is_for_types(module, node):
                    continue
                if _is_unevaluated(module, node):
                    continue
                is_certain = is_certain and not _is_in_function(module, node)
            text = f"{feature} needs Python {version[0]}.{version[1]}, and {target.python_text}"
            severity = RULE.severity if is_certain else Severity.risk
            hint = _hint(feature, version, target)
            yield finding_at(RULE, module, node, text, hint, severity=severity)


def _hint(feature: str, version: Version, target: Target) -> str:
    replacements = {
        "tomllib": "tomli",
        "typing.": "typing_extensions",
        "Exception": "exceptiongroup",
    }
    name = feature.strip("`")
    for prefix, package in replacements.items():
        if name.startswith(prefix) or f"{prefix}Group" in name:
            return f"Use {package} from PyPI if the import fails, and add it to the requirements."
    whose = "job's" if target.brings_python else "image's"
    minor = f"{version[0]}.{version[1]}"
    return f"Write it for the {whose} Python, or set a newer one:\n    job: {{python: '{minor}'}}"


def _python(target: Target) -> tuple[int, ...] | None:
    """The job's Python; None if it is not known."""
    if target.brings_python:
        return python_version(target.python)
    if target.kind != "vm" or target.tensorflow is not None or not target.image:
        return None
    # Images of Compute Engine are those of the catalog: PROJECT/FAMILY.
    is_known = "/" in target.image or any(runtime.version == target.image for runtime in runtimes())
    is_known = is_known and target.image not in OLDER
    return python_version(target.python) if is_known else None


# What the code uses -----------------------------------------------------------------------------


def _uses(module: Module, root: Path) -> Iterator[Use]:
    yield from _syntax(module)
    for node, names in _named(module):
        for name in names:
            if name in NAMES and not _is_own(root, name):
                yield node, f"`{name}`", NAMES[name]
                break


def _named(module: Module) -> Iterator[tuple[ast.AST, list[str]]]:
    """The nodes that may name something new, with the names."""
    for node in module.of_types(ast.Import):
        yield node, [alias.name for alias in node.names]
    for node in module.of_types(ast.ImportFrom):
        if not node.level:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield node, [node.module or "", *names]
    # A name that is imported by itself is reported there.
    new = (NAMES.keys() & module.used_names[0]) - {*module.names.imports.values()}
    for node in module.of_types(ast.Attribute) if new else ():
        name = module.names.of(node)
        if name in new:
            yield node, [name]
    builtins = [node for node in module.of_types(ast.Name) if node.id in BUILTINS]
    defined = _defined(module) if builtins else set[str]()
    yield from ((node, [node.id]) for node in builtins if node.id not in defined)


def _defined(module: Module) -> set[str]:
    """The names that a file imports, assigns or defines."""
    definitions = module.of_types(ast.ClassDef, ast.FunctionDef)
    names = module.of_types(ast.Name)
    return {
        *module.names.imports,
        *(node.name for node in definitions),
        *(node.id for node in names if node.ctx.__class__ is ast.Store),
    }


def _is_own(root: Path, name: str) -> bool:
    """Whether a module of the project has the name of Python's."""
    top = name.partition(".")[0]
    return (root / f"{top}.py").exists() or (root / top).is_dir()


def _syntax(module: Module) -> Iterator[Use]:
    try_star, type_alias = getattr(ast, "TryStar", ()), getattr(ast, "TypeAlias", ())
    template = getattr(ast, "TemplateStr", ())
    kinds = (ast.Subscript, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    extra = [kind for kind in (try_star, type_alias, template) if kind]
    for node in module.of_types(*kinds, *extra):
        if try_star and isinstance(node, try_star):
            yield node, "the syntax `except*`", (3, 11)
        elif type_alias and isinstance(node, type_alias):
            yield node, "the syntax `type NAME = …`", (3, 12)
        elif template and isinstance(node, template):
            yield node, 'the syntax `t"…"`', (3, 14)
        elif isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
            is_bare = bool(parts) and parts[0].col_offset == node.slice.col_offset
            if is_bare and any(isinstance(part, ast.Starred) for part in parts):
                yield node, "the syntax `NAME[*…]`", (3, 11)
        else:
            parameters = getattr(node, "type_params", [])
            has_defaults = any(
                getattr(parameter, "default_value", None) for parameter in parameters
            )
            if parameters:
                feature = f"the syntax `{node.name}[…]`"
                yield node, feature, (3, 13) if has_defaults else (3, 12)
            star = node.args.vararg if not isinstance(node, ast.ClassDef) else None
            if star is not None and isinstance(star.annotation, ast.Starred):
                yield node, "the syntax `*args: *…`", (3, 11)
    if sys.version_info >= (3, 12) and module.of_types(ast.JoinedStr):
        yield from _nested_strings(module)


def _nested_strings(module: Module) -> Iterator[Use]:
    """Formatted strings that contain their own quotes, a backslash or a comment in an expression,
    which earlier versions cannot parse. Only tokenized so by the versions that can."""
    quotes: list[str] = []
    for token in tokenize.generate_tokens(StringIO(module.text).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("FSTRING_START", "STRING") and quotes:
            quote = token.string.lstrip("rRbBuUfF")
            quote = quote[:3] if quote[:3] in ('"""', "'''") else quote[:1]
            if quote == quotes[-1] or (kind == "STRING" and "\\" in token.string):
                yield _At(token.start), "the syntax of this nested string", (3, 12)
        if kind == "FSTRING_START":
            quotes.append(token.string.lstrip("rRbBuUfF"))
        elif kind == "FSTRING_END":
            quotes.pop()
        elif kind == "COMMENT" and quotes:
            yield _At(token.start), "the syntax of a comment in this string", (3, 12)


class _At(ast.AST):
    """A position in the file."""

    def __init__(self, start: tuple[int, int]) -> None:
        super().__init__()
        self.lineno, self.col_offset = start


def _is_for_types(module: Module, node: ast.AST) -> bool:
    """Whether it is only for type checkers: in `if TYPE_CHECKING`."""
    return any(
        isinstance(ancestor, ast.If) and "TYPE_CHECKING" in module.segment(ancestor.test)
        for ancestor in module.ancestors(node)
    )


def _is_in_function(module: Module, node: ast.AST) -> bool:
    """Whether it is in the body of a function, which may never run."""
    child = node
    for ancestor in module.ancestors(node):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(ancestor, ast.Lambda) or (
            isinstance(ancestor, kinds) and child in ancestor.body
        ):
            return True
        child = ancestor
    return False


def _is_unevaluated(module: Module, node: ast.AST) -> bool:
    """Whether it is in an annotation, of a file whose annotations are not evaluated."""
    if module.names.imports.get("annotations") != "__future__.annotations":
        return False
    child = node
    for ancestor in module.ancestors(node):
        if child in (getattr(ancestor, "annotation", None), getattr(ancestor, "returns", None)):
            return True
        child = ancestor
    return False


def _always_imported(project: Project) -> set[str]:
    """The modules that the script imports whenever it starts."""
    always, pending = set[str](), ["__main__"]
    while pending:
        name = pending.pop()
        module = project.modules.get(name)
        if name in always or module is None:
            continue
        always.add(name)
        for node in module.of_types(ast.Import, ast.ImportFrom):
            if is_guarded(module, node) or _is_for_types(module, node):
                continue
            if _is_in_function(module, node):
                continue
            for imported in _imported(node, module.package):
                parts = imported.split(".")
                pending += (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return always


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    parents = package.split(".") if package else []
    above = parents[: len(parents) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names)


# requires-python ----------------------------------------------------------------------------------


@once_per_folder
def _required(project: Project, target: Target) -> Iterator[Finding]:
    """Files that exclude the job's Python. pip and uv refuse to install such a project or lock."""
    metadata = metadata_of(project)
    if metadata is not None:
        clauses = metadata.document.get("requires-python")
        script = project.script.path
        yield from _excluded(script, clauses, "requires-python", target, Severity.risk)
    certain = Severity.risk if target.installs_more else Severity.error
    installed = requirements_file(project, target.requirements)
    if installed is not None and form_of(installed) is not None:
        clauses = _document(installed).get("requires-python")
        yield from _excluded(installed, clauses, "requires-python", target, certain)
    file = project.root / PROJECT
    if target.requirements is not None and installed is not None and form_of(installed) is None:
        file = installed
    if file.name != PROJECT or not file.is_file():
        return
    document = _document(file)
    severity = certain if installed == file and "build-system" in document else Severity.risk
    metadata_table = document.get("project")
    if isinstance(metadata_table, dict):
        clauses = metadata_table.get("requires-python")
        yield from _excluded(file, clauses, "requires-python", target, severity)
    tool = document.get("tool")
    poetry = tool.get("poetry", {}) if isinstance(tool, dict) else {}
    dependencies = poetry.get("dependencies", {}) if isinstance(poetry, dict) else {}
    if isinstance(dependencies, dict) and isinstance(dependencies.get("python"), str):
        clauses = re.sub(r"\^", ">=", dependencies["python"])
        yield from _excluded(file, clauses, "python", target, severity)


def _document(file: Path) -> dict[str, Any]:
    try:
        return parse_toml(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _excluded(
    path: Path, clauses: object, key: str, target: Target, severity: Severity
) -> Iterator[Finding]:
    """A finding if no patch of a Python that the job may run on meets the clauses."""
    if not isinstance(clauses, str) or "||" in clauses:
        return
    if any(_allows_minor(clauses, python) for python in target.pythons or (target.python,)):
        return
    lines = path.read_text("utf-8", "replace").split("\n")
    pattern = re.compile(rf"^[#\s]*{key}\s*=")
    line = next((number for number, text in enumerate(lines, 1) if pattern.match(text)), 1)
    text = f"{key} is {clauses}, and {target.python_text}"
    fitting = [minor for minor in python_minors() if _allows_minor(clauses, minor)]
    hint = "Change it to what the code runs on."
    if fitting:
        current = python_version(target.python)
        newer = (minor for minor in fitting if python_version(minor) > current)
        hint = "Change it if the code runs there, or set the job's Python:\n"
        hint += f"    job: {{python: '{next(newer, fitting[-1])}'}}"
    yield Finding(RULE.code, severity, path, line, 0, text, hint)


def _allows_minor(clauses: str, minor: str) -> bool:
    """Whether some patch of a Python meets the clauses."""
    return allows(clauses, f"{minor}.0") or allows(clauses, f"{minor}.99")
