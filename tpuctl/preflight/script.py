"""What must be true of a script before anything of it is sent."""

from __future__ import annotations

import ast
from pathlib import Path

from tpuctl.errors import Refused, Usage

__all__ = ["check_script"]


def check_script(script: Path) -> None:
    """Raise Usage when there is no such file, Refused when it is not valid Python.

    Only `.py` files are parsed; the syntax is that of the Python running here.
    """
    if not script.is_file():
        kind = "is a folder" if script.is_dir() else "does not exist"
        raise Usage("No such script", f"{script} {kind}", hint="Give the path of a Python file.")
    if script.suffix != ".py":
        return
    try:
        ast.parse(script.read_bytes(), filename=str(script))
    except SyntaxError as error:
        raise Refused(
            "Script is not valid Python",
            f"{error.msg}" + (f": {error.text.strip()}" if error.text else ""),
            hint="Mend it, then run it again.",
            where=f"{script}:{error.lineno or 1}",
        ) from None
    except ValueError as error:  # null bytes
        raise Refused("Script is not valid Python", f"{script}: {error}") from None
