"""Delays of slow steps: none, short ones to watch, or realistic ones."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_PACE = "quick"

PACES = ("instant", "quick", "real")


class Pace:
    """One of PACES; `seconds(step)` is the minimum duration of a step."""

    def __init__(self, name: str, seconds: Mapping[str, tuple[float, float]]) -> None:
        """`seconds` maps steps to (quick, real); a step is an operation or its collection:
        "compute.disks" also applies to "compute.disks.resize"."""
        if name not in PACES:
            raise ValueError(f"unknown pace: {name} (choose from {', '.join(PACES)})")
        self.name = name
        self._seconds = seconds

    def seconds(self, step: str) -> float:
        """The delay of a step, or of its collection; LookupError if neither is defined."""
        for key in (step, step.rpartition(".")[0]):
            if key in self._seconds:
                quick, real = self._seconds[key]
                break
        else:
            raise LookupError(f"no pace for {step!r}: add it to the paces in its API's api.py")
        return {"instant": 0.0, "quick": quick, "real": real}[self.name]
