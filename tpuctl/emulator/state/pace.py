"""How long slow things take: nothing, moments that can be watched, or as in the real cloud."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEFAULT_PACE", "PACES", "Pace"]

DEFAULT_PACE = "quick"

PACES = ("instant", "quick", "real")


class Pace:
    """One of PACES; `seconds(step)` is how long the step takes at least."""

    def __init__(self, name: str, seconds: Mapping[str, tuple[float, float]]) -> None:
        """`seconds` has each step at (quick, real), a step being an operation or its whole
        collection: what "compute.disks" has is meant for "compute.disks.resize", too."""
        if name not in PACES:
            raise ValueError(f"no such pace: {name} (there are {', '.join(PACES)})")
        self.name = name
        self._seconds = seconds

    def seconds(self, step: str) -> float:
        """Of a step or else of its collection; raises LookupError where neither has a pace."""
        for known in (step, step.rpartition(".")[0]):
            if known in self._seconds:
                quick, real = self._seconds[known]
                break
        else:
            raise LookupError(
                f"no pace for {step!r}: give it seconds in the paces of its API's api.py"
            )
        return {"instant": 0.0, "quick": quick, "real": real}[self.name]
