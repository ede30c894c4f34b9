"""What a shell had in its environment before it was pointed at a local cloud."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["RECORD", "read_record", "surroundings", "way_back"]

RECORD = "TPUCTL_LOCAL_ENV"  # the variable that tells


def surroundings(around: Mapping[str, str]) -> dict[str, str]:
    """The environment as it was before it was pointed at a local cloud."""
    record = read_record(around)
    return {
        **{name: value for name, value in around.items() if name not in {*record, RECORD}},
        **{name: value for name, value in record.items() if value is not None},
    }


def way_back(around: Mapping[str, str]) -> dict[str, str | None]:
    """The variables to set, or with None to unset, to undo `environment_for`; {} where it was not
    done."""
    record = read_record(around)
    return {**record, RECORD: None} if RECORD in around else {}


def read_record(around: Mapping[str, str]) -> dict[str, str | None]:
    with contextlib.suppress(ValueError, AttributeError):
        known: dict[str, Any] = json.loads(around.get(RECORD, "{}"))
        return {name: value for name, value in known.items() if name != RECORD}
    return {}
