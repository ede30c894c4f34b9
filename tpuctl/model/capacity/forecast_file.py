"""The last forecast for each stack, which this computer remembers until its next `up`.

If a file cannot be read or written, it is as if there were no forecast: nothing depends on it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tpuctl.files import private_folder, read_file, state_home
from tpuctl.model.capacity.forecast import Forecast
from tpuctl.model.stack.stack import Stack

MAX_FILE_BYTES = 64 << 10


def remember_forecast(cloud: str, stack: Stack, forecast: Forecast) -> None:
    """Replace the forecast for a stack on a cloud (`google` or `local`)."""
    from pydantic import TypeAdapter

    path = _path(cloud, stack)
    with suppress(OSError):
        private_folder(path.parent)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(TypeAdapter(Forecast).dump_json(forecast))
        partial.replace(path)


def read_forecast(cloud: str, stack: Stack) -> Forecast | None:
    """The last forecast for a stack, if there is one."""
    try:
        contents = read_file(_path(cloud, stack), MAX_FILE_BYTES)
        from pydantic import TypeAdapter

        return TypeAdapter(Forecast).validate_json(contents)
    except (OSError, ValueError, RecursionError):
        return None


def _path(cloud: str, stack: Stack) -> Path:
    return state_home() / "forecasts" / f"{cloud}-{stack.project}-{stack.name}.json"
