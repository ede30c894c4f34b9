"""The stack file from which each stack was last brought up on this computer.

Two folders whose stacks have the same name share one TPU, perhaps without knowing. This is local
state: a colleague, or a build machine, uses the same stack from another folder as a rule.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tpuctl.files import private_folder, read_file, state_home
from tpuctl.model.events import Note
from tpuctl.model.stack.stack import Stack

MAX_BYTES = 1 << 14


def other_folder(stack: Stack, cloud: str) -> Path | None:
    """The folder of another stack file, which still exists, that brought this stack up."""
    try:
        path = Path(read_file(_record(stack, cloud), MAX_BYTES).decode())
        is_other = path.is_file() and not path.samefile(stack.path)
    except (OSError, ValueError):
        return None
    return path.parent if is_other else None


def other_folder_note(stack: Stack, cloud: str) -> Note | None:
    """What to say before a command changes a stack of another folder."""
    folder = other_folder(stack, cloud)
    if folder is None:
        return None
    return Note(
        f"Stack {stack.name} was last brought up from {folder}, not from this folder. Both use the "
        "same TPU; to separate them, change `stack` in one of the stack files."
    )


def remember_folder(stack: Stack, cloud: str) -> None:
    """Remember this stack file, if it exists and the state folder can be written."""
    with suppress(OSError, ValueError):
        if stack.path.is_file():
            record = _record(stack, cloud)
            private_folder(record.parent)
            record.write_text(str(stack.path.resolve()), "utf-8")


def forget_folder(stack: Stack, cloud: str) -> None:
    with suppress(OSError):
        _record(stack, cloud).unlink(missing_ok=True)


def _record(stack: Stack, cloud: str) -> Path:
    return state_home() / "stacks" / cloud / stack.project / stack.name
