"""What must be true of a script before anything of it is sent."""

from __future__ import annotations

import ast
from pathlib import Path

from tpuctl.errors import Refused, Usage

__all__ = ["check_script"]


def check_script(script: Path) -> None:
    """Raise Usage when there is no such file, Refused when it should not be sent: it is not valid
    Python, or its folder, which is shipped with it, is the user's home.

    The syntax is that of the Python running here.
    """
    if not script.is_file():
        kind = "does not exist"
        if script.exists():
            kind = "is a folder" if script.is_dir() else "is not a file"
        raise Usage("No such script", f"{script} {kind}", hint="Give the path of a Python file.")
    _refuse_home(script)
    try:
        ast.parse(script.read_bytes(), filename=str(script))
    except SyntaxError as error:
        raise Refused(
            "Script is not valid Python",
            f"{error.msg}" + (f": {error.text.strip()}" if error.text else ""),
            hint="Mend it, then run it again. --no-check sends it as it is.",
            where=f"{script}:{error.lineno or 1}",
        ) from None
    except ValueError as error:  # null bytes
        raise Refused("Script is not valid Python", f"{script}: {error}") from None


def _refuse_home(script: Path) -> None:
    folder = script.parent.resolve()
    try:
        home = Path.home().resolve()
    except RuntimeError:  # nobody knows where it is
        return
    if home.is_relative_to(folder):
        raise Refused(
            "Script lies in your home folder",
            f"all of {folder} would be shipped with it",
            hint="Give the script a folder of its own. --no-check ships it nevertheless.",
            where=str(script),
        )
