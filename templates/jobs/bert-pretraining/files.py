"""Files in a folder or in a bucket (gs://…), with the same functions for both.

Buckets are accessed through TensorFlow, which is imported only for them: data can be prepared on
a computer without it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import storage_errors
from errors import JobError

__all__ = [
    "copy",
    "exists",
    "is_remote",
    "join",
    "lines",
    "names",
    "open_file",
    "read_errors",
    "read_json",
    "read_text",
    "remove",
    "sha256",
    "size_and_mtime",
    "text_files",
    "write_errors",
    "write_json",
    "write_text",
]

BLOCK = 1 << 20  # bytes


def is_remote(path: str) -> bool:
    """Whether a path is in a bucket."""
    return "://" in path


def join(folder: str, *names: str) -> str:
    """Join a path; works for gs:// on every system."""
    return "/".join([folder.rstrip("/"), *names])


def names(folder: str) -> list[str]:
    """Return the sorted names of the files in a folder; empty if it does not exist."""
    with read_errors(folder):
        try:
            if is_remote(folder):
                file_names = gfile().listdir(folder)
            else:
                file_names = [path.name for path in Path(folder).iterdir() if path.is_file()]
        except (FileNotFoundError, NotADirectoryError, *not_found_errors()):
            return []
    return sorted(name for name in file_names if not name.endswith("/"))


def exists(path: str) -> bool:
    """Whether a file or folder exists."""
    with read_errors(path):
        return bool(gfile().exists(path)) if is_remote(path) else Path(path).exists()


def text_files(folder: str) -> list[str]:
    """Return the `.txt` files of a folder in order of name; empty if it does not exist."""
    return [join(folder, name) for name in names(folder) if name.endswith(".txt")]


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file."""
    with read_errors(path), open_file(path, "r") as file:
        yield from file


def sha256(path: str) -> str:
    """Return the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with read_errors(path), open_file(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def size_and_mtime(path: str) -> tuple[int, int]:
    """Return a file's size in bytes and its modification time in nanoseconds."""
    with read_errors(path):
        if is_remote(path):
            info = gfile().stat(path)
            return info.length, info.mtime_nsec
        status = Path(path).stat()
        return status.st_size, status.st_mtime_ns


def read_text(path: str) -> str | None:
    """Return a file's text, or None if the file does not exist."""
    with read_errors(path):
        try:
            with open_file(path, "r") as file:
                return str(file.read())
        except (FileNotFoundError, *not_found_errors()):
            return None


def read_json(path: str) -> dict[str, Any]:
    """Return a file's JSON object; empty if the file is missing or truncated."""
    try:
        value = json.loads(read_text(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def write_text(path: str, text: str) -> None:
    """Write a file, creating its folder."""
    with write_errors(path), open_file(path, "w") as file:
        file.write(text)


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a file with one JSON object."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def copy(source: str, target: str) -> None:
    """Copy a file, creating the target's folder."""
    with read_errors(source), open_file(source, "rb") as file:  # noqa: SIM117 (errors differ)
        with write_errors(target), open_file(target, "wb") as target_file:
            shutil.copyfileobj(file, target_file, BLOCK)


def remove(path: str) -> None:
    """Remove a file if it exists."""
    with write_errors(path):
        try:
            if is_remote(path):
                gfile().remove(path)
            else:
                Path(path).unlink()
        except (FileNotFoundError, *not_found_errors()):
            return


def open_file(path: str, mode: str) -> IO[Any]:
    """Open a file: "r", "rb", "w" or "wb"; writing creates its folder. Text is UTF-8."""
    if is_remote(path):
        return gfile().GFile(path, mode)  # type: ignore[no-any-return]
    if mode.startswith("w"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path).open(mode, encoding=None if "b" in mode else "utf-8")


@contextmanager
def read_errors(path: str) -> Iterator[None]:
    """Turn an exception while reading into a JobError with the path."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise JobError(f"{path} is not UTF-8 text: {error.reason}", 2) from error
    except (OSError, *tensorflow_errors()) as error:
        raise JobError(f"cannot read {path}: {reason(path, error, False)}") from error


@contextmanager
def write_errors(path: str) -> Iterator[None]:
    """Turn an exception while writing into a JobError with the path."""
    try:
        yield
    except (OSError, *tensorflow_errors()) as error:
        raise JobError(f"cannot write {path}: {reason(path, error, True)}") from error


def gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def tensorflow_errors() -> tuple[type[Exception], ...]:
    """Return the base class of TensorFlow's file errors, if TensorFlow is imported."""
    tensorflow = sys.modules.get("tensorflow")
    return (tensorflow.errors.OpError,) if tensorflow else ()


def not_found_errors() -> tuple[type[Exception], ...]:
    tensorflow = sys.modules.get("tensorflow")
    return (tensorflow.errors.NotFoundError,) if tensorflow else ()


def reason(path: str, error: Exception, is_written: bool) -> str:
    message = getattr(error, "message", "") or getattr(error, "strerror", "") or str(error)
    if is_remote(path) and (
        explanation := storage_errors.explain(path, str(message), is_written=is_written)
    ):
        return explanation
    message_lines = str(message).splitlines()
    return message_lines[0] if message_lines else type(error).__name__
