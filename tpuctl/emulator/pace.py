"""How long slow things take: nothing, moments that can be watched, or as in the real cloud."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEFAULT_PACE", "PACES", "Pace"]

DEFAULT_PACE = "quick"

# Seconds per step at (quick, real). The real ones were seen where a source is named; the others
# are guesses and stand on the list of things not tried against Google.
_SECONDS: Mapping[str, tuple[float, float]] = {
    "tpu.nodes.create": (2.0, 300.0),  # "TPU VM 3-10 min" in public reports, 2019-2026
    "tpu.nodes.delete": (0.6, 60.0),  # guess
    "tpu.nodes.update": (0.2, 8.0),  # guess
    "tpu.nodes.stop": (0.6, 60.0),  # guess
    "tpu.nodes.start": (1.0, 180.0),  # guess
    "services.enable": (0.6, 150.0),  # "API enabling 2-3 min" in public reports
    "services.disable": (0.3, 20.0),  # guess
    "projects.create": (0.6, 20.0),  # guess
    "projects.delete": (0.2, 5.0),  # guess
    "compute.networks": (0.6, 30.0),  # guess
    "compute.firewalls": (0.3, 10.0),  # guess
    "compute.metadata": (0.3, 8.0),  # guess
}
PACES = ("instant", "quick", "real")


class Pace:
    """One of PACES; `seconds(step)` is how long the step takes at least."""

    def __init__(self, name: str = DEFAULT_PACE) -> None:
        if name not in PACES:
            raise ValueError(f"no such pace: {name} (there are {', '.join(PACES)})")
        self.name = name

    def seconds(self, step: str) -> float:
        quick, real = _SECONDS[step]
        return {"instant": 0.0, "quick": quick, "real": real}[self.name]
