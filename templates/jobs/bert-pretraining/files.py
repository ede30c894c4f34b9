"""Files in a folder or in a bucket (gs://…), through TensorFlow, and their errors in one line."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MAX_CHARACTERS = 600  # of an error


class JobError(Exception):
    """A problem that the user can fix, in one line. The exit code is 2 for invalid input."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def report(run: Callable[[], int]) -> int:
    """Run a program; print a JobError as one line. Return the exit code."""
    try:
        return run()
    except JobError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def gfile() -> Any:
    """Return TensorFlow's file functions. It is imported late, as it takes seconds."""
    import tensorflow as tf

    return tf.io.gfile


def join(folder: str, *parts: str) -> str:
    """Join a path; the same for gs:// and for folders."""
    return "/".join([folder.rstrip("/"), *parts])


def names(folder: str) -> list[str]:
    """Return the names in a folder in order; none if it does not exist."""
    with file_errors(folder):
        entries = gfile().listdir(folder) if gfile().isdir(folder) else []
    return sorted(name.rstrip("/") for name in entries)


def sizes(folder: str, listed: list[str]) -> dict[str, int]:
    """Return the size in bytes of each of the listed files in a folder."""
    with file_errors(folder):
        return {name: gfile().stat(join(folder, name)).length for name in listed}


def read_text(path: str) -> str:
    """Return a file's text; empty if the file does not exist."""
    with file_errors(path):
        if not gfile().exists(path):
            return ""
        with gfile().GFile(path) as file:
            return str(file.read())


def read_json(path: str) -> dict[str, Any]:
    """Return a file's JSON object; empty if the file is missing or cut short."""
    try:
        value = json.loads(read_text(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def make_folder(folder: str) -> None:
    """Create a folder; a bucket has none."""
    if "://" not in folder:
        gfile().makedirs(folder)


def write_text(path: str, text: str) -> None:
    """Write a file, and its folder if it is missing."""
    with file_errors(path, is_written=True):
        make_folder(path.rpartition("/")[0] or ".")
        with gfile().GFile(path, "w") as file:
            file.write(text)


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a file with one JSON object."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def remove(path: str) -> None:
    """Remove a file if it exists."""
    with file_errors(path, is_written=True):
        if gfile().exists(path):
            gfile().remove(path)


@contextmanager
def file_errors(path: str, *, is_written: bool = False) -> Iterator[None]:
    """Turn an error of reading or writing a path into a JobError that names it."""
    import tensorflow as tf

    try:
        yield
    except UnicodeDecodeError as error:
        raise JobError(f"{path} is not UTF-8 text: {error.reason}", 2) from error
    except (OSError, tf.errors.OpError) as error:
        text = str(getattr(error, "message", "") or getattr(error, "strerror", "") or error)
        # A refusal of Cloud Storage has several lines; `tpuctl explain` knows them.
        reason = " ".join(text.split())[:MAX_CHARACTERS] or type(error).__name__
        raise JobError(f"cannot {'write' if is_written else 'read'} {path}: {reason}") from error
