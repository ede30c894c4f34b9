"""Parses a script and the project files that it imports, without running them."""

from __future__ import annotations

import ast
import os
import re
import sys
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tpuctl.preflight.analysis.program.qualified_names import IMPORTERS, Names
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, Function, own_nodes, parts_of

SOURCES = ("", "src")  # folders of packages, as on workers
KERAS_BACKEND = "KERAS_BACKEND"
TENSORFLOW_PACKAGES = ("tensorflow", "keras", "tf_")  # the beginnings of their names
STRATEGY = re.compile("TPUStrategy|TPUClusterResolver")


class Exclusion(Protocol):
    """Why a file is not uploaded, as in `tpuctl.jobs.file_selection`."""

    @property
    def rule(self) -> str: ...
    @property
    def remedy(self) -> str: ...


class NotOnPath(NamedTuple):
    """Why a script cannot import the package that it is in: its own folder is on the path."""

    folder: Path  # that contains the package
    remedy: str = "Run the script as a module."

    @property
    def rule(self) -> str:
        return f"{self.folder} is not on the path"


class Upload(Protocol):
    """What a job gets of its folder."""

    @property
    def exclusion_of(self) -> Callable[[Path], Exclusion | None]:
        """None for a file that is uploaded."""
        ...

    @property
    def around(self) -> tuple[Path, ...]:
        """Other folders in which this computer's Python finds modules."""
        ...

    @property
    def lfs_pointers(self) -> Callable[[], Sequence[str]]:
        """The names of files without their content."""
        ...


class Unavailable(NamedTuple):
    """A file that a module imports on this computer, and that is not uploaded."""

    module: Module
    name: str  # dotted, as imported
    path: Path
    exclusion: Exclusion

    @property
    def statement(self) -> ast.AST:
        """The import."""
        return self.module.names.imported[self.name]


class UnreadableFile(NamedTuple):
    """A file that cannot be read or parsed."""

    path: Path
    line: int
    message: str


@dataclass(eq=False)
class Module:
    """One parsed file, compared by identity."""

    path: Path
    name: str  # dotted import name; "__main__" for the script
    text: str
    tree: ast.Module
    package: str = ""  # base of relative imports; empty for a script outside a package
    # Results that depend on this file alone, shared by the projects that have it, by any key.
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)
    _own_nodes: dict[Function, list[ast.AST]] = field(default_factory=dict, repr=False)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")  # like the parser: a form feed does not end a line

    @cached_property
    def names(self) -> Names:
        """Resolves names to qualified names."""
        types: tuple[type[ast.AST], ...] = (ast.Import, ast.ImportFrom, ast.Assign)
        if any(name in self.text for name in IMPORTERS):
            types += (ast.Call,)
        return Names(self.of_types(*types), self.package)

    @cached_property
    def packages(self) -> frozenset[str]:
        """The top-level packages of what it imports."""
        return frozenset(name.partition(".")[0] for name in self.names.imports.values())

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, parents before children, without operators and contexts."""
        return [self.tree, *self.parents]

    @cached_property
    def _by_type(self) -> dict[type[ast.AST], list[Any]]:
        """The nodes of each type, in the order of `nodes`."""
        by_type: dict[type[ast.AST], list[Any]] = defaultdict(list)
        for node in self.nodes:
            by_type[node.__class__].append(node)
        return by_type

    @cached_property
    def _positions(self) -> dict[ast.AST, int]:
        return dict(zip(self.nodes, range(len(self.nodes)), strict=True))

    def of_types(self, *types: type[ast.AST]) -> Sequence[Any]:
        """The nodes of these types, in the order of `nodes`."""
        lists = [self._by_type[kind] for kind in {*types} if kind in self._by_type]
        if len(lists) <= 1:
            return lists[0] if lists else []
        return sorted(chain.from_iterable(lists), key=self._positions.__getitem__)

    @cached_property
    def used_names(self) -> tuple[frozenset[str], frozenset[str]]:
        """The qualified names that the file uses; its other attributes and keywords of calls, and
        the names that `import *` may bind.
        """
        qualified = set[str]()
        others = {node.arg for node in self.of_types(ast.keyword) if node.arg is not None}
        name_of = self.names.of
        for node in self.of_types(ast.Attribute):
            name = name_of(node)
            if name is None:
                others.add(node.attr)
            else:
                qualified.add(name)
        for node in self.of_types(ast.Name):
            name = name_of(node)
            if name is not None:
                qualified.add(name)
            elif self.names.stars:
                others.add(node.id)
        return frozenset(qualified), frozenset(others)

    def matches(self, pattern: re.Pattern[str]) -> frozenset[str]:
        """The packages of the qualified names that match a pattern as a whole or with a part, and
        "" if another name does; cached.
        """
        if pattern not in self.cache:
            qualified, others = self.used_names
            tops = {
                name.partition(".")[0]
                for name in qualified
                if any(map(pattern.fullmatch, (name, *name.split("."))))
            }
            is_other = any(map(pattern.fullmatch, others))
            self.cache[pattern] = frozenset(tops | ({""} if is_other else set()))
        matches: frozenset[str] = self.cache[pattern]
        return matches

    @cached_property
    def texts(self) -> frozenset[str]:
        """The texts in the file's code, without docstrings."""
        return frozenset(
            node.value
            for node in self.of_types(ast.Constant)
            if isinstance(node.value, str) and not isinstance(self.parents[node], ast.Expr)
        )

    @cached_property
    def calls(self) -> Sequence[ast.Call]:
        return self.of_types(ast.Call)

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Classes by name, nested ones included; the last definition of each name."""
        return {node.name: node for node in self.of_types(ast.ClassDef)}

    @cached_property
    def parts(self) -> dict[ast.AST, list[ast.AST]]:
        """The child nodes of each node that has some, as `parts_of` lists them."""
        parts: dict[ast.AST, list[ast.AST]] = {}
        pending: list[ast.AST] = [self.tree]
        for node in pending:  # grows during iteration
            if below := parts_of(node):
                parts[node] = below
                pending += below
        return parts

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of each node."""
        return {part: node for node, parts in self.parts.items() for part in parts}

    def own_nodes(self, function: Function) -> list[ast.AST]:
        """The nodes of a function's body, without nested functions and classes."""
        if function not in self._own_nodes:
            self._own_nodes[function] = list(own_nodes(function))
        return self._own_nodes[function]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def enclosing(self, node: ast.AST, kinds: type[ast.AST] | tuple[type[ast.AST], ...]) -> Any:
        """The innermost node of these types around a node; None if there is none."""
        parents = self.parents
        ancestor = parents.get(node)
        while ancestor is not None and not isinstance(ancestor, kinds):
            ancestor = parents.get(ancestor)
        return ancestor

    def enclosing_function(self, node: ast.AST) -> Function | None:
        """The innermost function or lambda around a node."""
        function: Function | None = self.enclosing(node, FUNCTIONS)
        return function

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class around a node."""
        owner: ast.ClassDef | None = self.enclosing(node, ast.ClassDef)
        return owner

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that contains a node."""
        around = (node, *self.ancestors(node))
        return next(part for part in around if isinstance(part, ast.stmt))

    def column(self, line: int, offset: int) -> int:
        """The column in characters for a byte offset, as in `ast`."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return offset if text.isascii() else len(text.encode()[:offset].decode("utf-8", "ignore"))

    def segment(self, node: ast.AST) -> str:
        """The source text of a node, on one line, without comments."""
        first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if first is None or last is None:
            return ""
        if first < last and any("#" in text for text in self.lines[first - 1 : last]):
            return " ".join(ast.unparse(node).split())
        lines = [text.encode() for text in self.lines[first - 1 : last]]
        lines[-1] = lines[-1][: getattr(node, "end_col_offset", None)]
        lines[0] = lines[0][getattr(node, "col_offset", 0) :]
        return b" ".join(b" ".join(lines).split()).decode("utf-8", "replace")


@dataclass(eq=False)
class Project:
    """A script and the modules that it imports from its folder, or those of several scripts."""

    root: Path
    modules: dict[str, Module] = field(default_factory=dict)  # a single script first, as "__main__"
    # The modules of each script, itself first; none for a script that cannot be parsed.
    programs: dict[Module, list[Module]] = field(default_factory=dict)
    unreadable: list[UnreadableFile] = field(default_factory=list)
    upload: Upload | None = None  # None: everything counts as uploaded
    unavailable: list[Unavailable] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)  # of the job
    _joined: Sequence[Project] = ()
    # Results that depend on the folder alone, shared by its scripts, by any hashable key.
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)
    # Results shared by rules, by any hashable key.
    cache: dict[Any, Any] = field(default_factory=dict)
    _found: dict[str, tuple[Module, ast.AST] | None] = field(default_factory=dict, repr=False)

    @cached_property
    def uses_tensorflow(self) -> bool:
        """Whether any file imports TensorFlow, or Keras for TensorFlow."""
        packages = ["tensorflow", "tf_keras"]
        packages += ["keras", "keras_hub", "keras_nlp"] * (self.keras_backend == "tensorflow")
        return not self.packages.isdisjoint(packages)

    @cached_property
    def uses_jax(self) -> bool:
        """Whether any file imports JAX, or Keras for JAX."""
        return "jax" in self.packages or (self.keras_backend == "jax" and "keras" in self.packages)

    @property
    def may_use_tensorflow(self) -> bool:
        """Whether any file imports a package around TensorFlow, or none says what else it uses."""
        return not (self.uses_jax or self.drives_torch) or any(
            package.startswith(TENSORFLOW_PACKAGES) for package in self.packages
        )

    @cached_property
    def keras_backend(self) -> str:
        """What Keras 3 computes with: "tensorflow", unless the script or the job's environment
        sets another backend.
        """
        backend = self.environment.get(KERAS_BACKEND, "")
        for module in self:
            for value, is_default in environment_values(module, KERAS_BACKEND):
                backend = backend if backend and is_default else value
        return backend or "tensorflow"

    @cached_property
    def uses_torch_xla(self) -> bool:
        """Whether any file imports PyTorch/XLA."""
        return "torch_xla" in self.packages

    @cached_property
    def drives_torch(self) -> bool:
        """Whether any file imports torch-tpu or PyTorch/XLA."""
        return not self.packages.isdisjoint(("torch_tpu", "torch_xla"))

    @cached_property
    def has_other_driver(self) -> bool:
        """Whether JAX or PyTorch computes on the TPU, so that TensorFlow only loads data."""
        return (self.uses_jax or self.drives_torch) and not self.uses_name(STRATEGY)

    @cached_property
    def packages(self) -> frozenset[str]:
        """The top-level packages of what its files import."""
        return frozenset[str]().union(*(module.packages for module in self))

    @cached_property
    def used_names(self) -> frozenset[str]:
        """The names of other code that the project uses: those of libraries, qualified and by part,
        attributes, and keywords of calls. Comments and texts use nothing.
        """
        names: set[str] = set()
        for module in self:
            qualified, others = module.used_names
            names |= others
            for name in qualified:
                if name.partition(".")[0] not in self.modules:
                    names.update((name, *name.split(".")))
        return frozenset(names)

    def uses_qualified(self, name: str) -> bool:
        """Whether any file uses a qualified name, cached."""
        key = "uses qualified", name
        if key not in self.cache:
            self.cache[key] = any(name in module.used_names[0] for module in self)
        is_used: bool = self.cache[key]
        return is_used

    def uses_name(self, pattern: re.Pattern[str]) -> bool:
        """Whether a used name matches a pattern as a whole."""
        return any(module.matches(pattern) - self.modules.keys() for module in self)

    @cached_property
    def texts(self) -> frozenset[str]:
        """The texts in the project's code, without docstrings."""
        return frozenset(text for module in self for text in module.texts)

    @property
    def by_script(self) -> Sequence[Project]:
        """A project for each script."""
        return self._joined or [self]

    @property
    def script(self) -> Module:
        return next(iter(self.programs))

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules.values())

    @classmethod
    def joined(cls, projects: Sequence[Project]) -> Project:
        """The files of several projects, each once, also if a script imports another."""
        if len(projects) == 1:
            return projects[0]
        by_path: dict[Path, Module] = {}
        for module in (module for project in projects for module in project):
            if module.name != "__main__" or module.path not in by_path:
                by_path[module.path] = module
        first = projects[0]
        project = cls(
            first.root, upload=first.upload, environment=first.environment, _joined=projects
        )
        for path, module in by_path.items():
            project.modules[str(path) if module.name == "__main__" else module.name] = module
        for part in projects:
            project.unreadable += part.unreadable
            for script, modules in part.programs.items():
                program = [by_path[module.path] for module in modules]
                project.programs[by_path[script.path]] = program
        return project

    def find(self, name: str) -> tuple[Module, ast.AST] | None:
        """The project's function or class with a qualified name, followed through imports."""
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> tuple[Module, ast.AST] | None:
        module_name, _, rest = name.rpartition(".")
        while module_name:
            module = self.modules.get(module_name)
            if module is not None:
                definition = _definition(module, rest.split("."))
                if definition is not None:
                    return module, definition
                imported = module.names.imports.get(rest.split(".")[0])  # a re-export
                if imported is None or imported == f"{module_name}.{rest}":
                    return None
                return self.find(".".join([imported, *rest.split(".")[1:]]))
            module_name, _, last = module_name.rpartition(".")
            rest = f"{last}.{rest}"
        return None


def environment_values(module: Module, name: str) -> list[tuple[str, bool]]:
    """The texts that a file assigns to an environment variable, and whether only by default."""
    key = "environment values", name
    if key not in module.cache:
        module.cache[key] = list(_environment_values(module, name))
    values: list[tuple[str, bool]] = module.cache[key]
    return values


def _environment_values(module: Module, name: str) -> Iterator[tuple[str, bool]]:
    if "os" not in module.packages:
        return
    for node in module.of_types(ast.Assign, ast.AugAssign, ast.Call):
        pairs: list[tuple[ast.AST | None, ast.expr]] = []
        method = ""
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            owner: ast.AST = target.value
            pairs = [(target.slice, node.value)]
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Dict):
            owner, pairs = node.target, [*zip(node.value.keys, node.value.values, strict=True)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, method = node.func.value, node.func.attr
            pairs = [(ast.Constant(part.arg), part.value) for part in node.keywords]
            if method == "setdefault" and len(node.args) == 2:
                pairs = [(node.args[0], node.args[1])]
            elif node.args and isinstance(node.args[0], ast.Dict):
                pairs += zip(node.args[0].keys, node.args[0].values, strict=True)
        if not pairs or module.names.of(owner) != "os.environ":
            continue
        for key, value in pairs:
            texts = [getattr(part, "value", None) for part in (key, value)]
            if texts[0] == name and isinstance(texts[1], str):
                yield texts[1], method == "setdefault"


class Folders:
    """The modules in folders, each looked up once."""

    def __init__(self) -> None:
        self._names: dict[Path, frozenset[str]] = {}
        self._files: dict[tuple[Path, str], list[tuple[str, Path]]] = {}

    def hold(self, root: Path, top: str) -> bool:
        """Whether a folder has a module or package of a name."""
        names = self._names_in(root)
        return (f"{top}.py" in names and (root / f"{top}.py").is_file()) or (
            top in names and (root / top).is_dir()
        )

    def files(self, root: Path, name: str) -> list[tuple[str, Path]]:
        """The files that importing a module of a folder runs, parent packages first."""
        key = root, name
        if not all(name.split(".")):
            return []
        if key not in self._files:
            parent, _, last = name.rpartition(".")
            folder = root.joinpath(*parent.split("."))
            names, file = self._names_in(folder), f"{last}.py"
            paths = [folder / last / "__init__.py"] if last in names else []
            paths += [folder / file] if file in names else []
            above = self.files(root, parent) if parent else []
            files = [(name, path.absolute()) for path in paths if path.is_file()]
            self._files[key] = above + files[:1]
        return self._files[key]

    def _names_in(self, folder: Path) -> frozenset[str]:
        """The names in a folder; none if it cannot be read, as for Python's import."""
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(entry.name for entry in os.scandir(folder))
            except OSError:
                self._names[folder] = frozenset()
        return self._names[folder]


class SearchPath:
    """The folders in which scripts that share them find what they import; each name is looked up
    once."""

    def __init__(self, folders: Folders, roots: Sequence[Path], around: Sequence[Path]) -> None:
        self.folders, self._roots, self._around = folders, roots, around
        self._holders: dict[str, Path | None] = {}  # by the tops of names; most are libraries
        self._files: dict[str, list[tuple[str, Path]]] = {}  # by names
        self._imports: dict[Module, list[tuple[str, list[tuple[str, Path]]]]] = {}

    def has_top(self, top: str) -> bool:
        """Whether Python or one of the roots has a module or package."""
        roots = self._roots
        return top in sys.stdlib_module_names or any(self.folders.hold(root, top) for root in roots)

    def _holder(self, top: str) -> Path | None:
        """The folder that has a module or package; one of those around only if no root has it."""
        if top not in self._holders:
            around = () if top in sys.stdlib_module_names else self._around
            holders = (root for root in (*self._roots, *around) if self.folders.hold(root, top))
            self._holders[top] = next(holders, None)
        return self._holders[top]

    def files(self, name: str) -> list[tuple[str, Path]]:
        """The files that importing a module runs, parent packages first."""
        if name not in self._files:
            holder = self._holder(name.partition(".")[0])
            self._files[name] = [] if holder is None else self.folders.files(holder, name)
        return self._files[name]

    def imports(self, module: Module) -> list[tuple[str, list[tuple[str, Path]]]]:
        """The names that a file imports and that are files in these folders, with those files."""
        if module not in self._imports:
            names = ((name, self.files(name)) for name in module.names.imported)
            self._imports[module] = [(name, files) for name, files in names if files]
        return self._imports[module]


class ParsedFiles:
    """The files of several projects, each parsed once."""

    def __init__(self) -> None:
        self._parsed: dict[Path, ast.Module | UnreadableFile] = {}
        self._texts: dict[Path, str] = {}
        self._modules: dict[tuple[Path, str, str], Module] = {}
        self.shared: dict[Any, Any] = {}  # see Project
        # By the folders of a search path.
        self.search_path = cache(partial(SearchPath, Folders()))

    def module(self, path: Path, name: str, package: str) -> Module | UnreadableFile:
        """A file under a name, with what was found out about it in other projects."""
        if path not in self._parsed:
            self._parsed[path] = self._parse(path)
        parsed = self._parsed[path]
        if isinstance(parsed, UnreadableFile):
            return parsed
        key = (path, name, package)
        if key not in self._modules:
            self._modules[key] = Module(path, name, self._texts[path], parsed, package)
        return self._modules[key]

    def _parse(self, path: Path) -> ast.Module | UnreadableFile:
        try:
            with tokenize.open(path) as source:  # as Python decodes it
                text = self._texts[path] = source.read()
            with warnings.catch_warnings():  # about the user's code
                warnings.simplefilter("ignore")
                return ast.parse(text, filename=str(path))
        except SyntaxError as error:
            return UnreadableFile(path, error.lineno or 1, error.msg)
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            message = f"byte {error.object[error.start]:#x} is not valid {error.encoding.upper()}"
            return UnreadableFile(path, line, message)
        except OSError as error:
            return UnreadableFile(path, 1, error.strerror or str(error))
        except (RecursionError, MemoryError):  # the parser's own limits
            return UnreadableFile(path, 1, "nested too deeply to parse")
        except ValueError as error:
            return UnreadableFile(path, 1, str(error))


def load(
    script: Path,
    root: Path | None = None,
    module: str = "",
    upload: Upload | None = None,
    files: ParsedFiles | None = None,
) -> Project:
    """Parse a script and everything in its folder that it imports, at module level or not.

    `root` is the folder to ship, by default the script's; `module` is the module name if the
    script is started with `python -m`. Never raises for invalid files: they are listed in
    `unreadable`. With `upload`, imported files that are not uploaded are listed in `unavailable`.
    `files` has those of other scripts of the folder.
    """
    script = script.absolute()
    parsed_files = files or ParsedFiles()
    root = (root or script.parent).absolute()
    project = Project(root, upload=upload, shared=parsed_files.shared)
    roots = [project.root.joinpath(source) for source in SOURCES]
    if module:
        package = module if script.name == "__main__.py" else module.rpartition(".")[0]
    else:
        package = _package(script, project.root)
        roots[:0] = [script.parent] if script.parent not in roots else []
    folders = tuple(roots)
    search_path = parsed_files.search_path(folders, upload.around if upload is not None else ())
    pending = [("__main__", script)]
    visited = {script}

    def enqueue(
        name: str, run_files: Sequence[tuple[str, Path]], importer: Module | None = None
    ) -> None:
        for module_name, file in run_files:
            if file in visited:
                continue
            exclusion = upload.exclusion_of(file) if upload is not None else None
            if exclusion is None:
                visited.add(file)
                pending.append((module_name, file))
            elif importer is not None:
                project.unavailable.append(Unavailable(importer, name, file, exclusion))
                break

    if package:
        enqueue(package, search_path.files(package))  # imported before the module runs
    for name, path in pending:  # grows during iteration
        if name != "__main__":
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        parsed = parsed_files.module(path, name, package)
        if isinstance(parsed, UnreadableFile):
            project.unreadable.append(parsed)
        else:
            project.modules[name] = parsed
            if name == "__main__":
                project.programs[parsed] = []
            for imported, run_files in search_path.imports(parsed):
                enqueue(imported, run_files, parsed)
    if upload is not None and files is None:  # a script is started in its own folder
        project.unavailable[:0] = _own_package(project, script, search_path)
    project.programs.update({started: list(project) for started in project.programs})
    return project


def _package(script: Path, root: Path) -> str:
    """The package below the root that contains a file; empty if there is none."""
    parts: list[str] = []
    folder = script.parent
    while folder != root and (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _own_package(project: Project, script: Path, search_path: SearchPath) -> Iterator[Unavailable]:
    """What a script imports of a package that it is in, whose folder is not on its path."""
    above = {folder.name: folder.parent for folder in reversed(script.parents)}
    for module in project:
        for name in module.names.imported:
            top = name.partition(".")[0]
            if top in above and not search_path.has_top(top):
                for _, file in search_path.folders.files(above[top], name)[-1:]:
                    yield Unavailable(module, name, file, NotOnPath(above[top]))


def _definition(module: Module, parts: list[str]) -> ast.AST | None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    definition: ast.AST | None = module.tree
    for part in parts:
        key = "definitions", definition
        if key not in module.cache:  # the last definition of a name wins
            statements = _statements(getattr(definition, "body", []))
            module.cache[key] = {
                statement.name: statement
                for statement in statements
                if isinstance(statement, kinds)
            }
        definition = module.cache[key].get(part)
        if definition is None:
            return None
    return definition


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a scope, including those in `if`, `try` and `with`."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statement, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(statement, name, []))
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _statements(handler.body)
