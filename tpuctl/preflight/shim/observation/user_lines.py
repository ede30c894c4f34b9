"""Finds the lines of the user's code behind calls, functions, operations and exceptions."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
from types import CodeType, FrameType, TracebackType
from typing import Any

Where = dict[str, Any]
TPUCTL = os.path.abspath(os.path.join(__file__, *[os.pardir] * 4))
PACKAGE_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
AUTOGRAPH_FILE = "__autograph_generated_file"
# A frame in TensorFlow's messages about converted functions and about operations.
FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
CONVERTED = "in user code:\n"  # starts the message of an exception in a converted function
SCRIPT_CALLS = os.path.join(TPUCTL, "simulated_tpu", "script_calls.py")


class UserLines:
    """Finds lines of the user's files: those below a folder, except installed packages."""

    def __init__(self, root: str) -> None:
        self.root = os.path.join(root, "")
        self._files: dict[str, str | None] = {}

    def file(self, name: str) -> str | None:
        """The absolute path of a user's file; None for other files."""
        if name not in self._files:
            real = os.path.realpath(name)
            is_users = real.startswith(self.root) and not real.startswith(TPUCTL + os.sep)
            is_users = is_users and not any(part in real for part in PACKAGE_FOLDERS)
            is_users = is_users and AUTOGRAPH_FILE not in real and os.path.isfile(real)
            self._files[name] = real if is_users else None
        return self._files[name]

    def at(self, name: str, line: int | None) -> Where | None:
        """A line of a file; None if it is not the user's."""
        file = self.file(name) if line else None
        if file is None or line is None:
            return None
        return {"file": file, "line": line, "text": linecache.getline(file, line).strip()}

    def current(self) -> Where | None:
        """The innermost line of the user's code that is being executed."""
        try:
            return self.of_frame(sys._getframe(1))
        except Exception:  # never disturb the script
            return None

    def of_frame(self, frame: FrameType | None) -> Where | None:
        """The innermost line of the user's code in a frame or its callers."""
        while frame is not None:
            if AUTOGRAPH_FILE in frame.f_code.co_filename:
                where = self._unconverted(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
            else:
                where = self.at(frame.f_code.co_filename, frame.f_lineno)
            if where is not None:
                return where
            frame = frame.f_back
        return None

    def definition(self, function: Any) -> Where | None:
        """The line of a function's `def`; None if it is not the user's."""
        code = _code(function)
        if code is None or self.file(code.co_filename) is None:
            return None
        for line in range(code.co_firstlineno, code.co_firstlineno + 20):  # below decorators
            text = linecache.getline(code.co_filename, line).split()[:2]
            if text[:1] == ["def"] or text == ["async", "def"]:
                return self.at(code.co_filename, line)
        return self.at(code.co_filename, code.co_firstlineno)

    def of_operation(self, operation: Any) -> Where | None:
        """The innermost line of the user's code that created an operation."""
        for frame in reversed(list(operation.traceback or ())):
            where = self.at(frame.filename, frame.lineno)
            if where is not None:
                return where
        return None

    def of_exception(self, error: BaseException) -> Where | None:
        """The innermost line of the user's code in an exception's message or traceback."""
        line = self.in_message(str(error))
        return line or self._in_traceback(error.__traceback__)

    def is_tpuctls(self, error: BaseException) -> bool:
        """Whether tpuctl's own code raised an exception, not what it calls for the script.

        The last frame decides: of those that TensorFlow lists in the message, as it raises the
        exception again, else of the traceback.
        """
        listed = FRAME.findall(str(error)) if str(error).startswith(CONVERTED) else []
        file, traceback = listed[-1][0] if listed else "", error.__traceback__
        while traceback is not None and not listed:
            file, traceback = traceback.tb_frame.f_code.co_filename, traceback.tb_next
        path = os.path.realpath(file)
        return path.startswith(TPUCTL + os.sep) and path != SCRIPT_CALLS

    def in_message(self, message: str) -> Where | None:
        """The innermost user's line in TensorFlow's message, which may omit the leading slash."""
        last = None
        for match in FRAME.finditer(message):
            name = match["file"]
            line = int(match["line"])
            last = self.at(name, line) or self.at(os.sep + name, line) or last
        return last

    def _in_traceback(self, traceback: TracebackType | None) -> Where | None:
        last = None
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if AUTOGRAPH_FILE in code.co_filename:
                here = self._unconverted(
                    code.co_filename, traceback.tb_lineno, traceback.tb_frame.f_globals
                )
            else:
                here = self.at(code.co_filename, traceback.tb_lineno)
            last, traceback = here or last, traceback.tb_next
        return last

    def _unconverted(self, name: str, line: int, names: dict[str, Any]) -> Where | None:
        """The user's line for a line that AutoGraph generated, from its source map."""
        for value in list(names.values()):
            origins = getattr(value, "ag_source_map", None)
            if not origins:
                continue
            for generated, origin in origins.items():
                if generated.lineno == line and generated.filename == name:
                    return self.at(origin.loc.filename, origin.loc.lineno)
        return None


def _code(function: Any) -> CodeType | None:
    for _ in range(20):
        if inspect.ismethod(function):
            function = function.__func__
        wrapped = None
        for name in ("python_function", "_tf_decorator", "__wrapped__", "func"):
            wrapped = getattr(function, name, None)
            if name == "_tf_decorator" and wrapped is not None:
                wrapped = getattr(wrapped, "decorated_target", None)
            if callable(wrapped) and wrapped is not function:
                break
            wrapped = None
        if wrapped is None:
            break
        function = wrapped
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")  # a callable object
    return getattr(function, "__code__", None)
