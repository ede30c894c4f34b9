"""The files of a worker's chips: devices, and locks that programs leave.

Like the programs that import it, this file is sent to workers as it is: standard library only,
Python 3.8 and later.
"""

from __future__ import annotations

import glob

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

# Of v4 and older, and of newer versions; /dev/vfio/vfio is not a chip.
DEVICES = ["/dev/accel[0-9]*", "/dev/vfio/[0-9]*"]
LOCKS = ["/tmp/libtpu_lockfile*"]


def device_files(spec: dict[str, Any]) -> list[str]:
    return _files(spec, "devices", DEVICES)


def lock_files(spec: dict[str, Any]) -> list[str]:
    return _files(spec, "locks", LOCKS)


def _files(spec: dict[str, Any], kind: str, default: list[str]) -> list[str]:
    patterns = (spec.get("accelerator") or {}).get(kind, default)
    return sorted(path for pattern in patterns for path in glob.glob(pattern))


def has_chips(spec: dict[str, Any]) -> bool:
    """Whether this machine has chips, or a lock for them, that the script opens itself.

    With TPU_LOAD_LIBRARY=0, a process of the image serves the chips, and keeps them.
    """
    if (spec.get("env") or {}).get("TPU_LOAD_LIBRARY") == "0":
        return False
    return bool(device_files(spec) or lock_files(spec))
