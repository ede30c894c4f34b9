"""The methods of Google's APIs by path, to name an unsupported method in the error.

`methods.txt` is generated from Google's discovery documents by `make docs`: verb, path with * for a
name, and the method's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("methods.txt")


def list_methods() -> Iterator[tuple[str, str, str]]:
    """Verb, path as `/v2/projects/*/locations`, and name of every method, prefixed by its API."""
    for line in LIST.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            verb, path, name = line.split(" ")  # the name as `tpu.v2:tpu.projects.locations.get`
            yield verb, path, name


def method_name(verb: str, path: str, api: str = "") -> str | None:
    """The name of a request's method; None if Google has no method with this path.

    `api` is the first part of its host's name, for paths that several APIs have.
    """
    name = versioned_name(verb, path, api)
    return None if name is None else name.partition(":")[2]


def versioned_name(verb: str, path: str, api: str = "") -> str | None:
    """The same with its API's version, as `tpu.v2:tpu.projects.locations.get`."""
    path = _MEDIA.sub("", path)
    candidates = _by_shape().get((verb, path.count("/")), ())
    names = [name for pattern, name in candidates if pattern.fullmatch(path)]
    return next((name for name in names if name.startswith(f"{api}.")), next(iter(names), None))


_MEDIA = re.compile(r"^/(?:(?:resumable/)?upload|download)(?=/storage/)")


@cache
def _by_shape() -> Mapping[tuple[str, int], list[tuple[re.Pattern[str], str]]]:
    by_shape: dict[tuple[str, int], list[tuple[re.Pattern[str], str]]] = {}
    for verb, path, name in list_methods():
        pattern = re.compile(re.escape(path).replace(r"\*", "[^/:]+"))
        by_shape.setdefault((verb, path.count("/")), []).append((pattern, name))
    return by_shape
