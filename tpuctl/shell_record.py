"""A shell's environment from before it was configured for a local cloud."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

RECORD = "TPUCTL_LOCAL_ENV"  # the variable with the original values


def original_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment as it was before `environment_for` was applied."""
    record = read_record(environ)
    return {
        **{name: value for name, value in environ.items() if name not in {*record, RECORD}},
        **{name: value for name, value in record.items() if value is not None},
    }


def restore_variables(environ: Mapping[str, str]) -> dict[str, str | None]:
    """The variables to set (None: unset) to undo `environment_for`; {} if it was not applied."""
    record = read_record(environ)
    return {**record, RECORD: None} if RECORD in environ else {}


def read_record(environ: Mapping[str, str]) -> dict[str, str | None]:
    with contextlib.suppress(ValueError, AttributeError):
        record: dict[str, Any] = json.loads(environ.get(RECORD, "{}"))
        return {name: value for name, value in record.items() if name != RECORD}
    return {}
