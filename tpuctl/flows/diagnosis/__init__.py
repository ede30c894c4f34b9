"""Whether everything that a stack needs is there: asked, never changed."""

from tpuctl.flows.diagnosis.checks import Check, examine
from tpuctl.flows.diagnosis.machine import machine_finding
from tpuctl.flows.diagnosis.project import ProjectChecks

__all__ = ["Check", "ProjectChecks", "examine", "machine_finding"]
