"""The attributes of a request (project, zone, type, …), extracted from any API's message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.state.projects import consumer_of

_MAX_DEPTH = 5
_MAX_TEXT_LENGTH = 400
_LOCATION = re.compile(r"(?:^|/)(?:locations|zones)/([^/]+)")


def request_attributes(request: Any) -> dict[str, Any]:
    """A request's project, zone, region, type and names, as far as they are set."""
    names: list[str] = []
    zone = region = kind = ""
    for name, value in _text_fields(request):
        location = _LOCATION.search(value)
        if name == "zone":
            zone = zone or value.rpartition("/")[2]
        elif name == "region":
            region = region or value.rpartition("/")[2]
        elif name in ("accelerator_type", "machine_type"):
            kind = kind or value.rpartition("/")[2]
        elif location is not None:
            zone = zone or location[1]
        if name not in ("filter", "page_token", "order_by"):
            names.append(value)
    return {
        "project": consumer_of(request) or "",
        "zone": zone,
        "region": region or (catalog.region_of(zone) if zone else ""),
        "type": kind,
        "name": names,
    }


def _text_fields(message: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Names and values of all short string fields, outer ones first."""
    inner = []
    for field, value in message.ListFields():
        if field.message_type is not None:
            if not field.message_type.GetOptions().map_entry:
                inner += list(value) if field.is_repeated else [value]
        elif isinstance(value, str) and len(value) <= _MAX_TEXT_LENGTH:
            yield field.name, value
    if depth < _MAX_DEPTH:
        for submessage in inner:
            yield from _text_fields(submessage, depth + 1)
