"""How workers are named in messages.

Imported by other shipped files, this file is sent to workers as it is: standard library only,
Python 3.8 and later.
"""

from __future__ import annotations

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any


def worker_name(spec: dict[str, Any], worker: int) -> str:
    """The worker as users see it: `5`, or `1.1` in a job that runs on several slices."""
    workers_per_slice = spec.get("slice_workers")
    return (
        ".".join(map(str, divmod(worker, workers_per_slice))) if workers_per_slice else str(worker)
    )
