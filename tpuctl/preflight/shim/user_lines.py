"""Lines of the user's own code: who called, where a function stands, what an exception passed."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
from types import CodeType, TracebackType
from typing import Any

__all__ = ["UserLines", "Where"]

Where = dict[str, Any]
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
AUTOGRAPH_FILE = "__autograph_generated_file"
# As TensorFlow prints the lines of a function that it converted, and those that made an operation.
FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')


class UserLines:
    """Knows the user's files: those below a folder, without what was installed there."""

    def __init__(self, root: str) -> None:
        self.root = os.path.join(root, "")
        self._files: dict[str, str | None] = {}

    def file(self, name: str) -> str | None:
        """The absolute name of a file of the user's; None for all others."""
        if name not in self._files:
            real = os.path.realpath(name)
            is_users = real.startswith(self.root) and not real.startswith(HERE + os.sep)
            is_users = is_users and not any(part in real for part in PACKAGE_FOLDERS)
            is_users = is_users and AUTOGRAPH_FILE not in real and os.path.isfile(real)
            self._files[name] = real if is_users else None
        return self._files[name]

    def at(self, name: str, line: int | None) -> Where | None:
        """A line of a file, where it is the user's."""
        file = self.file(name) if line else None
        if file is None or line is None:
            return None
        return {"file": file, "line": line, "text": linecache.getline(file, line).strip()}

    def current(self) -> Where | None:
        """The innermost line of the user's that is being executed now."""
        try:
            return self._innermost()
        except Exception:  # what is only told is not worth the script
            return None

    def _innermost(self) -> Where | None:
        frame = sys._getframe(2)
        while frame is not None:
            if AUTOGRAPH_FILE in frame.f_code.co_filename:
                where = self._autograph_source(
                    frame.f_code.co_filename, frame.f_lineno, frame.f_globals
                )
            else:
                where = self.at(frame.f_code.co_filename, frame.f_lineno)
            if where is not None:
                return where
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def definition(self, function: Any) -> Where | None:
        """Where a function of the user's is defined."""
        code = _code(function)
        if code is None or self.file(code.co_filename) is None:
            return None
        for line in range(code.co_firstlineno, code.co_firstlineno + 20):  # below decorators
            text = linecache.getline(code.co_filename, line).split()[:2]
            if text[:1] == ["def"] or text == ["async", "def"]:
                return self.at(code.co_filename, line)
        return self.at(code.co_filename, code.co_firstlineno)

    def of_operation(self, operation: Any) -> Where | None:
        """The innermost line of the user's that made an operation of a graph."""
        for frame in reversed(list(operation.traceback or ())):
            where = self.at(frame.filename, frame.lineno)
            if where is not None:
                return where
        return None

    def of_exception(self, error: BaseException) -> Where | None:
        """The line of the user's from which an exception came."""
        line = self.in_message(str(error))
        return line or self._in_traceback(error.__traceback__)

    def in_message(self, message: str) -> Where | None:
        """The innermost of the user's lines in a message of TensorFlow's, root or not before it."""
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
                here = self._autograph_source(
                    code.co_filename, traceback.tb_lineno, traceback.tb_frame.f_globals
                )
            else:
                here = self.at(code.co_filename, traceback.tb_lineno)
            last, traceback = here or last, traceback.tb_next
        return last

    def _autograph_source(self, name: str, line: int, names: dict[str, Any]) -> Where | None:
        """The user's line behind one that AutoGraph generated, from the map that it keeps."""
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
        function = vars(type(function)).get("__call__")  # an object that is called
    return getattr(function, "__code__", None)
