"""What each method needs of its caller, as `method_permissions.toml` beside this file tells it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Row", "methods", "row_of", "storage_permission"]


@dataclass(frozen=True)
class Row:
    """Permissions on what the request names in `field` ("" for wherever it stands), and rules."""

    permissions: tuple[str, ...]
    rules: tuple[str, ...]
    field: str = ""


def row_of(method: str) -> Row | None:
    """The row of `package.Service/Method` or `storage.collection.method`; None if it has none."""
    return _load().get(method)


def storage_permission(method: str) -> str:
    """What a method of Cloud Storage needs; those that write objects are not asked for more."""
    row = row_of(method)
    return row.permissions[0] if row is not None and row.permissions else "storage.objects.create"


def methods() -> list[str]:
    """Every method that has a row, in order."""
    return sorted(_load())


@cache
def _load() -> Mapping[str, Row]:
    text = files("tpuctl.emulator.iam").joinpath("method_permissions.toml").read_text("utf-8")
    return {
        f"{service}{'.' if service == 'storage' else '/'}{name}": _row(value)
        for service, rows in tomllib.loads(text).items()
        for name, value in rows.items()
    }


def _row(text: str) -> Row:
    words = text.split()
    fields = [word[1:] for word in words if word.startswith("@")]
    return Row(
        tuple(word for word in words if word[0] not in "@+"),
        tuple(word[1:] for word in words if word.startswith("+")),
        fields[0] if fields else "",
    )
