"""`job`: functions that run on a stack, for scripts and notebooks."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import linecache
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast

from tpuctl.api.blocking import BlockingTpuctl
from tpuctl.errors import Diagnostic, TpuctlError, Usage
from tpuctl.model.stack.stack_search import STACK_FILE, find_stack_file
from tpuctl.units import decimal_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.api.interface import Tpuctl
    from tpuctl.flows.jobs.submission import Submission
    from tpuctl.model.jobs.job import JobRecord
    from tpuctl.preflight.submit_gate import Runnable

__all__ = ["RemoteFunction", "RemoteTraceback", "job"]

P = ParamSpec("P")
R = TypeVar("R")

FOLDER = ".tpuctl"  # in the bundle; projects have none that is uploaded
MAX_BYTES = 32_000_000  # of the pickled arguments, and of the pickled value


def job(
    *,
    stack: str | Path = STACK_FILE,
    cloud: Literal["google", "local"] = "google",
    check: bool = True,
    python: str = "",
) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]:
    """Decorate a function whose `run` calls it on the stack's machines, as a job.

    @tpuctl.job(stack="tpuctl.yaml")
    def train(rate: float) -> float: ...

    loss = train.run(1e-3)

    A relative path of the stack file is relative to the function's module, or to the current folder
    in a notebook; `tpuctl.yaml` may also be in a folder above it, as for commands.

    The function's module is uploaded with its folder, like the script of `tpuctl run`, and checked
    unless `check` is false. It runs on the Python that `python` asks for, as `job.python` in the
    stack file: "3.12", or the image's. Calling the function itself runs it here. Raises Usage for
    a function that machines cannot import: a lambda, a method, or one defined in a function.
    """

    def decorate(function: Callable[P, R]) -> RemoteFunction[P, R]:
        return RemoteFunction(function, Path(stack), cloud, check=check, python=python)

    return decorate


class RemoteTraceback(Exception):
    """The cause of an exception from a machine: its traceback there, as text."""


class RemoteFunction(Generic[P, R]):
    """A function that also runs as a job: `run` waits for its value, `result` for an earlier one's.

    Called directly, it runs here.
    """

    def __init__(
        self,
        function: Callable[P, R],
        stack: Path,
        cloud: Literal["google", "local"],
        *,
        check: bool,
        python: str,
    ) -> None:
        self._function = _require_importable(function)
        self._stack = stack
        self._cloud = cloud
        self._check = check
        self._python = python
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", self._function(*args, **kwargs))

    def __reduce__(self) -> str:
        return self._function.__qualname__

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function on the stack's machines, print the job's log, and return the value.

        On several workers, it runs as a script would, and the value is that of the first. An
        exception of the function is raised here, with its traceback there as `__cause__`. Raises
        RemoteFailed if the job ends otherwise without a value, and what `Tpuctl.submit` raises.
        Ctrl-C leaves the job running.
        """
        inspect.signature(self._function).bind(*args, **kwargs)  # TypeError, before the upload
        with _hints(), BlockingTpuctl(self._stack_file(), cloud=self._cloud) as stack:
            _require_guard(self._function)
            calling = stack.api, self._function, (args, kwargs)
            with _submission(*calling, check=self._check, python=self._python) as ready:
                record = stack.wait_for(stack.api.start(ready))
            return self._wait(stack, record)

    def result(self, job: str = "") -> R:
        """The value of a job that `run` started, by its id or last word.

        By default it is the running job, or else the latest. Waits for the job if it is still
        running.
        """
        with _hints(), BlockingTpuctl(self._stack_file(), cloud=self._cloud) as stack:
            return self._wait(stack, stack.job(job))

    def _stack_file(self) -> Path:
        file = getattr(sys.modules[self._function.__module__], "__file__", None)
        folder = Path(file).absolute().parent if file else Path()
        if self._stack != Path(STACK_FILE):
            return folder / self._stack
        path = find_stack_file(folder, _refuse)
        if path.parent != folder:
            print(f"Using the stack file {path}.", file=sys.stderr)
        return path

    def _wait(self, stack: BlockingTpuctl, record: JobRecord) -> R:
        from tpuctl.flows.jobs.function_value import read_outcome

        try:
            stack.follow(record)
        except KeyboardInterrupt:
            print(_left_running(self._function, record, self._cloud), file=sys.stderr)
            raise
        outcome = stack.wait_for(read_outcome(stack.api.context, record))
        if outcome.value is None:
            cause = RemoteTraceback(f"\n{outcome.where}:\n{outcome.traceback}")
            raise outcome.exception() from (cause if outcome.traceback else None)
        try:
            return cast("R", outcome.load(outcome.value))
        except Exception as error:
            raise outcome.unreadable("the returned value", error) from error


def _refuse(diagnostic: Diagnostic) -> None:
    raise Usage(diagnostic.summary, diagnostic.detail, hint='Pass it: @tpuctl.job(stack="PATH")')


@contextmanager
def _hints() -> Iterator[None]:
    """Show all problems and what to do about them below a traceback."""
    try:
        yield
    except TpuctlError as error:
        for diagnostic in error.diagnostics:
            if note := diagnostic.text.removeprefix(str(error)).strip():
                error.add_note(note)
        raise


# The function ------------------------------------------------------------------------------------


def _require_importable(function: Callable[..., Any]) -> FunctionType:
    """Raise Usage unless a machine can import the function by its name."""
    problem = ""
    name = getattr(function, "__qualname__", repr(function))
    if not isinstance(function, FunctionType):
        problem = f"{name} is not a function"
    elif function.__name__ == "<lambda>":
        problem = "a lambda has no name that a machine could import"
    elif "<locals>" in name:
        problem = f"{function.__name__} is defined in another function"
    elif "." in name:
        problem = f"{name} is a method"
    elif inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        problem = f"{name} is asynchronous or a generator"
    if problem:
        raise Usage(
            "Function cannot be a job",
            problem,
            hint="Decorate a function that is defined with def at the top level of its module.",
        )
    return cast("FunctionType", function)


def _require_guard(function: FunctionType) -> None:
    """Raise Usage if a script calls the function while it is loaded: so would the machines."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    if function.__module__ != "__main__" or main is None:
        return
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != "__main__":
        frame = frame.f_back
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename != main:
        return
    line = frame.f_lineno
    for statement in ast.parse("".join(linecache.getlines(main))).body:
        if statement.lineno <= line <= (statement.end_lineno or line) and not (
            isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
        ):
            raise Usage(
                "Call is not guarded",
                f"machines load {Path(main).name} to find {function.__name__}, and would call it "
                "there again",
                hint='Put the call below a line\n    if __name__ == "__main__":',
                where=f"{main}:{line}",
            )


@dataclass(frozen=True)
class _Place:
    """Where machines find a function: a module by its name, or a file that they run."""

    program: Runnable  # to check, with the folder to upload
    module: str = ""
    file: str = ""  # in the bundle
    additions: Mapping[str, Path] | None = None  # to the bundle
    variables: Mapping[str, bytes] | None = None


@contextmanager
def _submission(
    api: Tpuctl,
    function: FunctionType,
    arguments: tuple[Any, ...],
    *,
    check: bool,
    python: str,
) -> Iterator[Submission]:
    """A job that calls the function with positional and keyword arguments."""
    import pickle

    from tpuctl.assets import program
    from tpuctl.flows.jobs.function_source import PROTOCOL, pickled
    from tpuctl.flows.jobs.run import prepare_program

    subject = f"An argument of {function.__name__}"
    with tempfile.TemporaryDirectory(prefix="tpuctl-") as scratch_name:
        scratch = Path(scratch_name)
        data, references = pickled(arguments, subject)
        place = _place(function, scratch, references, check=check)
        contents = {"arguments": data, "variables": dict(place.variables or {})}
        payload = pickle.dumps(contents, PROTOCOL)
        if len(payload) > MAX_BYTES:
            raise Usage(
                "Arguments are too large",
                f"{function.__name__} and its arguments have {decimal_size(len(payload))}; at most "
                f"{decimal_size(MAX_BYTES)} are sent",
                hint="Store data in the bucket, and pass its path.",
            )
        described = {
            "module": place.module,
            "is_main": function.__module__ == "__main__",
            "file": place.file,
            "function": function.__name__,
            "python": platform.python_version(),
            "max_bytes": MAX_BYTES,
        }
        (scratch / "arguments.pickle").write_bytes(payload)
        (scratch / "call.json").write_text(json.dumps(described), "utf-8")
        # As `tpuctl jobs` shows it; not the name of a module, which could shadow another.
        script = f"call-{function.__name__}.py"
        (scratch / script).write_text(program("function_call.py"), "utf-8")
        names = (script, "call.json", "arguments.pickle")
        additions = {f"{FOLDER}/{name}": scratch / name for name in names}
        submission = prepare_program(
            api.stack,
            place.program,
            cloud=api.cloud_name,
            emit=api.emit,
            check=check,
            python=python,
        )
        yield replace(
            submission,
            script=None,
            kind="script",
            program=f"{FOLDER}/{script}",
            args=(f"{place.module or place.file}:{function.__name__}",),
            additions={**additions, **(place.additions or {})},
        )


def _place(function: FunctionType, scratch: Path, references: set[str], *, check: bool) -> _Place:
    from tpuctl.preflight.submit_gate import Runnable, refuse_home

    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if function.__module__ != "__main__":
        return _module_place(function.__module__, Path(inspect.getfile(function)))
    if getattr(main, "__file__", None) is not None:
        script = Path(str(main.__file__))
        if spec is not None:  # started with `python -m`
            return _module_place(spec.name, script)
        script = script.resolve()
        return _Place(Runnable("script", "", script.parent, script), file=script.name)
    from tpuctl.flows.jobs.function_source import NotebookSource

    if check:
        refuse_home(Path(), "the notebook's folder")
    source = NotebookSource(function)
    source.add_references(references)
    cells = scratch / "notebook" / "cells.py"
    cells.parent.mkdir()
    cells.write_text(source.text + "\n", "utf-8")
    name = f"{FOLDER}/notebook/{cells.name}"
    return _Place(
        Runnable("script", "", Path().resolve(), cells),
        file=name,
        additions={name: cells},
        variables=source.variables,
    )


def _module_place(name: str, file: Path) -> _Place:
    """The place of a module: in the current folder, as for `tpuctl run -m`, or in its own."""
    from tpuctl.preflight.submit_gate import Runnable, runnable

    file = file.resolve()
    main = runnable(name, "module")
    if main.file is not None and main.file.resolve() == file:
        return _Place(main, module=name)
    root = file.parents[name.count(".") + (file.name == "__init__.py")]
    if {"site-packages", "dist-packages"} & {*root.parts}:
        raise Usage(
            "Function cannot be a job",
            f"its module {name} is installed in {root}, and all packages there would be uploaded",
            hint="Decorate a function of your own that calls it.",
        )
    return _Place(Runnable("module", name, root, file), module=name)


def _left_running(function: FunctionType, record: JobRecord, cloud: str) -> str:
    command = "tpuctl" if cloud == "google" else f"tpuctl --cloud {cloud}"
    return (
        f"\nJob {record.id} keeps running. To wait for its value again:\n"
        f'    {function.__name__}.result("{record.id}")\n'
        f"To stop it:\n    {command} stop {record.id}"
    )
