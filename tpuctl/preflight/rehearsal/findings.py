"""Findings of a rehearsal, and the target that they apply to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tpuctl.preflight.rehearsal.estimate import Estimate
from tpuctl.preflight.rehearsal.observations import Where

# error: does not run or compile. cost: runs, but takes more time, memory or money than necessary.
# risk: may fail. fine: checked, no problem. unknown: could not be checked.
Severity = Literal["error", "cost", "risk", "fine", "unknown"]
ORDER: tuple[Severity, ...] = ("error", "cost", "risk", "unknown", "fine")


@dataclass(frozen=True)
class Target:
    """The TPU that the script is rehearsed for."""

    type: str  # "v3-8"
    generation: str
    chips: int
    replicas: int  # devices of all chips, as TensorFlow and JAX count them
    bytes_per_replica: int  # share of the chip's memory
    kind: Literal["vm", "node"] = "vm"
    tensorflow: str | None = None
    per_hour: float | None = None  # US dollars
    price_note: str = ""  # "on demand, prices of mid-2026"
    is_spot: bool = False
    workers: int = 1


@dataclass(frozen=True)
class Finding:
    """The result of one check. `message` is one line, `detail` may have several."""

    topic: str
    severity: Severity
    message: str
    detail: str = ""
    hint: str = ""
    where: Where | None = None

    @property
    def is_problem(self) -> bool:
        return self.severity in ("error", "cost", "risk")


@dataclass(frozen=True)
class Assessment:
    """All findings, and the measurements and the estimate that they are based on."""

    findings: tuple[Finding, ...]
    measured: Mapping[str, Any] = field(default_factory=dict)
    estimate: Estimate = field(default_factory=Estimate)

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def problems(self) -> tuple[Finding, ...]:
        problems = (finding for finding in self.findings if finding.is_problem)
        return tuple(sorted(problems, key=lambda finding: ORDER.index(finding.severity)))
