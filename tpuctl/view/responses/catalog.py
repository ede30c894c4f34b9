"""Answers from the catalog, and pages of help."""

from __future__ import annotations

from typing import Any

from tpuctl.view.responses.base import ABSENT, Object, Response

__all__ = ["HelpText", "Limits", "Prices", "RuntimeCatalog", "TypeCatalog", "ZoneCatalog"]


class HelpText(Response):
    """A page of text."""

    text: str


class TypeCatalog(Response):
    """`as_of` is the date of the catalog; `live` is Google's answer with --live."""

    as_of: str
    types: list[Object]
    live: Object | None


class ZoneCatalog(Response):
    as_of: str
    zones: list[Object]
    live: Object | None


class RuntimeCatalog(Response):
    as_of: str
    runtimes: list[Object]
    live: Object | None


class Prices(Response):
    """Exactly one of `prices`, `offers`, `machines`, `disks` and `storage` is present."""

    as_of: str
    type: str | None = ABSENT
    prices: list[Object] = ABSENT
    offers: list[Object] = ABSENT
    machines: list[Object] = ABSENT
    disks: list[Object] = ABSENT
    general: Any = ABSENT
    storage: list[Object] = ABSENT
    region: str | None = ABSENT
    budget: Object = ABSENT
    live: Object | None = ABSENT


class Limits(Response):
    """The quota that nodes of a type need; of all types if `type` is null."""

    type: str | None
    limits: list[Object]
    live: Object | None
