"""Files in a folder or in a bucket (gs://…), reached the same way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from errors import JobError

__all__ = [
    "join",
    "lines",
    "read_json",
    "read_text",
    "sha256",
    "text_files",
    "write_json",
    "write_text",
    "writing",
]


def join(folder: str, *names: str) -> str:
    """Put a path together; works for gs:// on every system."""
    return "/".join([folder.rstrip("/"), *names])


def text_files(folder: str) -> list[str]:
    """Return the `.txt` files of a folder in order of name; none when there is no such folder."""
    with reading(folder):
        try:
            return sorted(tf.io.gfile.glob(join(folder, "*.txt")))
        except tf.errors.NotFoundError:
            return []


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file."""
    with reading(path), tf.io.gfile.GFile(path, "r") as file:
        yield from file


def sha256(path: str) -> str:
    """Return the hash of a file's content."""
    digest = hashlib.sha256()
    with reading(path), tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_text(path: str) -> str | None:
    """Return a file's text, or None when there is no such file."""
    with reading(path):
        try:
            with tf.io.gfile.GFile(path, "r") as file:
                return str(file.read())
        except tf.errors.NotFoundError:
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
    with writing(path):
        tf.io.gfile.makedirs(path.rpartition("/")[0] or ".")
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(text)


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a file with one JSON object."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn a refusal to read into an error that names the place."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise JobError(f"{path} is not UTF-8 text: {error.reason}", 2) from error
    except (tf.errors.OpError, OSError) as error:
        raise JobError(f"cannot read {path}: {reason(error)}") from error


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn a refusal to write into an error that names the place."""
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        raise JobError(f"cannot write {path}: {reason(error)}") from error


def reason(error: Exception) -> str:
    lines_said = str(getattr(error, "message", "") or error).splitlines()
    return lines_said[0] if lines_said else type(error).__name__
