"""Files in a folder or in a bucket (gs://…), reached the same way.

Buckets are reached through TensorFlow, which is imported for them alone: data can be prepared on
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

import refusal
from errors import JobError

__all__ = [
    "copy",
    "exists",
    "is_remote",
    "join",
    "lines",
    "names",
    "opened",
    "read_json",
    "read_text",
    "reading",
    "remove",
    "sha256",
    "stamp",
    "text_files",
    "write_json",
    "write_text",
    "writing",
]

BLOCK = 1 << 20  # bytes


def is_remote(path: str) -> bool:
    """Tell whether a path leads into a bucket."""
    return "://" in path


def join(folder: str, *names: str) -> str:
    """Put a path together; works for gs:// on every system."""
    return "/".join([folder.rstrip("/"), *names])


def names(folder: str) -> list[str]:
    """Return the names of the files in a folder, in order; none when there is no such folder."""
    with reading(folder):
        try:
            if is_remote(folder):
                found = gfile().listdir(folder)
            else:
                found = [path.name for path in Path(folder).iterdir() if path.is_file()]
        except (FileNotFoundError, NotADirectoryError, *missing()):
            return []
    return sorted(name for name in found if not name.endswith("/"))


def exists(path: str) -> bool:
    """Tell whether there is a file or folder."""
    with reading(path):
        return bool(gfile().exists(path)) if is_remote(path) else Path(path).exists()


def text_files(folder: str) -> list[str]:
    """Return the `.txt` files of a folder in order of name; none when there is no such folder."""
    return [join(folder, name) for name in names(folder) if name.endswith(".txt")]


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file."""
    with reading(path), opened(path, "r") as file:
        yield from file


def sha256(path: str) -> str:
    """Return the hash of a file's content."""
    digest = hashlib.sha256()
    with reading(path), opened(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def stamp(path: str) -> tuple[int, int]:
    """Return a file's size in bytes and its time of change in nanoseconds."""
    with reading(path):
        if is_remote(path):
            found = gfile().stat(path)
            return found.length, found.mtime_nsec
        status = Path(path).stat()
        return status.st_size, status.st_mtime_ns


def read_text(path: str) -> str | None:
    """Return a file's text, or None when there is no such file."""
    with reading(path):
        try:
            with opened(path, "r") as file:
                return str(file.read())
        except (FileNotFoundError, *missing()):
            return None


def read_json(path: str) -> dict[str, Any]:
    """Return a file's JSON object; empty when the file is missing or was cut short."""
    try:
        value = json.loads(read_text(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def write_text(path: str, text: str) -> None:
    """Write a file, making its folder."""
    with writing(path), opened(path, "w") as file:
        file.write(text)


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a file with one JSON object."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def copy(source: str, target: str) -> None:
    """Write a file's content to another place, making its folder."""
    with reading(source), opened(source, "rb") as file:  # noqa: SIM117 (whose fault it is)
        with writing(target), opened(target, "wb") as written:
            shutil.copyfileobj(file, written, BLOCK)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    with writing(path):
        try:
            if is_remote(path):
                gfile().remove(path)
            else:
                Path(path).unlink()
        except (FileNotFoundError, *missing()):
            return


def opened(path: str, mode: str) -> IO[Any]:
    """Open a file: "r", "rb", "w" or "wb"; writing makes its folder. Text is UTF-8."""
    if is_remote(path):
        return gfile().GFile(path, mode)  # type: ignore[no-any-return]
    if mode.startswith("w"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path).open(mode, encoding=None if "b" in mode else "utf-8")


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn a refusal to read into an error that names the place."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise JobError(f"{path} is not UTF-8 text: {error.reason}", 2) from error
    except (OSError, *refusals()) as error:
        raise JobError(f"cannot read {path}: {reason(path, error, False)}") from error


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn a refusal to write into an error that names the place."""
    try:
        yield
    except (OSError, *refusals()) as error:
        raise JobError(f"cannot write {path}: {reason(path, error, True)}") from error


def gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def refusals() -> tuple[type[Exception], ...]:
    """Return what TensorFlow raises for a file, if it is there to raise anything."""
    tensorflow = sys.modules.get("tensorflow")
    return (tensorflow.errors.OpError,) if tensorflow else ()


def missing() -> tuple[type[Exception], ...]:
    tensorflow = sys.modules.get("tensorflow")
    return (tensorflow.errors.NotFoundError,) if tensorflow else ()


def reason(path: str, error: Exception, is_written: bool) -> str:
    told = getattr(error, "message", "") or getattr(error, "strerror", "") or str(error)
    if is_remote(path) and (refused := refusal.explain(path, str(told), is_written=is_written)):
        return refused
    lines_said = str(told).splitlines()
    return lines_said[0] if lines_said else type(error).__name__
