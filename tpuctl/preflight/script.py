"""What must be true of a script before anything of it is sent."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

from tpuctl.errors import Refused, Usage

__all__ = ["check_script", "other_interpreter", "refuse_home", "require_python"]


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


def refuse_home(folder: Path, what: str) -> None:
    """Raise Refused where the folder to ship is the user's home, or around it."""
    folder = folder.resolve()
    try:
        home = Path.home().resolve()
    except RuntimeError:  # nobody knows where it is
        return
    if home.is_relative_to(folder):
        raise Refused(
            "Script lies in your home folder",
            f"all of {folder} would be shipped with it",
            hint="Give the script a folder of its own. --no-check ships it nevertheless.",
            where=what,
        )
