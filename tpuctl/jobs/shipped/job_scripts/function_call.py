"""Calls a function of a job's code, and keeps what it returns or raises for the caller.

Like `supervisor.py`, this file is sent to workers as it is: standard library only, Python 3.8 and
later. It is part of the job's code, next to the files that describe the call:

    call.json: where the function is, and the limit for its value
    arguments.pickle: its arguments; of a notebook, the variables that it uses, too

It writes `value.json` in the attempt's folder, which the uploader stores in the bucket: the value,
of the first worker alone, or the exception of any.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import json
import os
import pickle
import platform
import sys
import traceback

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from types import FunctionType, ModuleType, TracebackType
    from typing import Any

VALUE = "value.json"
# The name of a script that multiprocessing imports in other processes, too.
MAIN = "__mp_main__"
PROTOCOL = 4  # every Python since 3.4 reads it


class Unsendable(Exception):
    """The arguments or the value cannot be pickled or unpickled, or are too large."""


class NotOnMachines:
    """Stands for what tpuctl offers on the computer that submits jobs."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"{self.__name__} is called while the machine loads the function's module: call it in "
            'a function, or below `if __name__ == "__main__":`'
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotOnMachines(f"{self.__name__}.{name}")


def job(**_: Any) -> Any:
    """The decorator on a machine, where the function is an ordinary one."""

    def decorate(function: FunctionType) -> FunctionType:
        for name in ("run", "result"):
            vars(function)[name] = NotOnMachines(f"{function.__name__}.{name}")
        return function

    return decorate


def provide_tpuctl() -> None:
    """Let modules import tpuctl, which machines do not have."""
    if importlib.util.find_spec("tpuctl") is None:
        module: Any = type(sys)("tpuctl")
        module.job = job
        module.__getattr__ = lambda name: NotOnMachines("tpuctl." + name)
        sys.modules["tpuctl"] = module


def call(folder: str) -> Any:
    """Call the function that the files in the folder describe; return its value."""
    with open(os.path.join(folder, "call.json"), encoding="utf-8") as source:
        described = json.load(source)
    with open(os.path.join(folder, "arguments.pickle"), "rb") as source:
        pickled = pickle.load(source)  # of bytes, so that it can be read without the modules
    if described["module"]:
        module = importlib.import_module(described["module"])
        if described["is_main"]:
            sys.modules["__main__"] = module
    else:
        module = load_main(described["file"], pickled["variables"])
    function = getattr(module, described["function"])
    try:
        arguments, keywords = pickle.loads(pickled["arguments"])
    except Exception as error:
        raise Unsendable(unreadable("the arguments", error, described["python"])) from error
    return function(*arguments, **keywords)


def load_main(file: str, variables: dict[str, bytes]) -> ModuleType:
    """Load a script, or what was collected from a notebook, without being its `__main__`."""
    spec = importlib.util.spec_from_file_location(MAIN, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["__main__"] = sys.modules[MAIN] = module
    later = {}
    for name, data in variables.items():
        try:
            vars(module)[name] = pickle.loads(data)
        except Exception:  # it may need a class of the module
            later[name] = data
    spec.loader.exec_module(module)
    for name, data in later.items():
        try:
            vars(module)[name] = pickle.loads(data)
        except Exception as error:
            raise Unsendable(unreadable("the variable " + name, error)) from error
    return module


def unreadable(subject: str, error: Exception, python: str = "") -> str:
    sender = f" (sent by Python {python})" if python else ""
    reader = platform.python_version()
    return f"{subject} cannot be loaded by Python {reader}{sender}: {type(error).__name__}: {error}"


def pickled_value(value: Any, limit: int) -> str:
    """The value as text. Raises Unsendable."""
    try:
        data = pickle.dumps(value, PROTOCOL)
    except Exception as error:
        kind = type(value).__qualname__
        raise Unsendable(
            f"a value of type {kind} was returned, which cannot be pickled: {error}"
        ) from error
    if len(data) > limit:
        raise Unsendable(f"the returned value has {len(data)} bytes; at most {limit} are allowed")
    return base64.b64encode(data).decode("ascii")


def described_error(error: Exception) -> dict[str, Any]:
    """The exception for the caller, who may not have its class."""
    here = os.path.abspath(__file__)
    where: TracebackType | None = error.__traceback__
    while where is not None and where.tb_next is not None:
        if os.path.abspath(where.tb_frame.f_code.co_filename) != here and (
            "importlib" not in where.tb_frame.f_code.co_filename
        ):
            break
        where = where.tb_next
    text = "".join(traceback.format_exception(type(error), error, where))
    sys.stderr.write(text)
    try:
        data = base64.b64encode(pickle.dumps(error, PROTOCOL)).decode("ascii")
    except Exception:
        data = ""
    return {
        "type": type(error).__qualname__,
        "message": str(error),
        "traceback": text,
        "pickle": data,
        "is_unsendable": isinstance(error, Unsendable),
    }


def main() -> int:
    here = os.path.dirname(os.path.abspath(__file__))
    attempt = os.environ["TPUCTL_FOLDER"]
    with open(os.path.join(attempt, "spec.json"), encoding="utf-8") as source:
        spec = json.load(source)
    first = ((spec.get("start_barrier") or {}).get("workers") or [spec["worker"]])[0]
    sys.path[0] = os.getcwd()  # instead of this folder
    provide_tpuctl()
    outcome: dict[str, Any] = {"worker": spec["worker"], "python": platform.python_version()}
    try:
        value = call(here)
        if spec["worker"] != first:
            return 0
        with open(os.path.join(here, "call.json"), encoding="utf-8") as source:
            limit = json.load(source)["max_bytes"]
        outcome["value"] = pickled_value(value, limit)
    except Exception as error:
        outcome["error"] = described_error(error)
    temporary = os.path.join(attempt, f".{VALUE}.{os.getpid()}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
        json.dump(outcome, file)
    os.replace(temporary, os.path.join(attempt, VALUE))
    return 1 if "error" in outcome else 0


if __name__ == "__main__":
    sys.exit(main())
