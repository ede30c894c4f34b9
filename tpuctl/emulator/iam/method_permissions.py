"""The permissions each method requires, from `permissions.toml` in each API's folder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files


@dataclass(frozen=True)
class Row:
    """Permissions on the resource named by `field` ("" for the first name field), and rules."""

    permissions: tuple[str, ...]
    rules: tuple[str, ...]
    field: str = ""


class MethodPermissions:
    """The table of all APIs, loaded lazily."""

    def __init__(self, packages: Iterable[str]) -> None:
        self._packages = tuple(packages)

    def row_of(self, method: str) -> Row | None:
        """The row of `package.Service/Method` or `storage.collection.method`, or None."""
        return self._rows.get(method)

    def storage_permission(self, method: str) -> str:
        """The permission of a Cloud Storage method; creating objects if it has no row."""
        row = self.row_of(method)
        return row.permissions[0] if row is not None and row.permissions else _CREATE

    def methods(self) -> list[str]:
        """Every method that has a row, sorted."""
        return sorted(self._rows)

    @cached_property
    def _rows(self) -> Mapping[str, Row]:
        texts = (files(package) / "permissions.toml" for package in self._packages)
        return {
            f"{service}{'.' if service == 'storage' else '/'}{name}": _row(value)
            for text in texts
            for service, rows in tomllib.loads(text.read_text("utf-8")).items()
            for name, value in rows.items()
        }


_CREATE = "storage.objects.create"


def _row(text: str) -> Row:
    words = text.split()
    fields = [word[1:] for word in words if word.startswith("@")]
    return Row(
        tuple(word for word in words if word[0] not in "@+"),
        tuple(word[1:] for word in words if word.startswith("+")),
        fields[0] if fields else "",
    )
