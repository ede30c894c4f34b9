"""What a request is about, found in its message whatever API it is of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.state.projects import consumer_of

__all__ = ["facts_of"]

_DEEPEST = 5
_LONGEST = 400
_PLACE = re.compile(r"(?:^|/)(?:locations|zones)/([^/]+)")


def facts_of(request: Any) -> dict[str, Any]:
    """Its project, zone, region, type, and the names in it, as far as it tells them."""
    names: list[str] = []
    zone = region = kind = ""
    for name, value in _texts(request):
        place = _PLACE.search(value)
        if name == "zone":
            zone = zone or value.rpartition("/")[2]
        elif name == "region":
            region = region or value.rpartition("/")[2]
        elif name in ("accelerator_type", "machine_type"):
            kind = kind or value.rpartition("/")[2]
        elif place is not None:
            zone = zone or place[1]
        if name not in ("filter", "page_token", "order_by"):
            names.append(value)
    return {
        "project": consumer_of(request) or "",
        "zone": zone,
        "region": region or (catalog.region_of(zone) if zone else ""),
        "type": kind,
        "name": names,
    }


def _texts(message: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Field names and values of all short texts; outer ones first."""
    inner = []
    for field, value in message.ListFields():
        if field.message_type is not None:
            if not field.message_type.GetOptions().map_entry:
                inner += list(value) if field.is_repeated else [value]
        elif isinstance(value, str) and len(value) <= _LONGEST:
            yield field.name, value
    if depth < _DEEPEST:
        for submessage in inner:
            yield from _texts(submessage, depth + 1)
