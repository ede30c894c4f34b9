"""Whether everything that a stack needs is there: asked, never changed."""

from tpuctl.flows.doctor.checks import Check, examine
from tpuctl.flows.doctor.machine import machine_finding
from tpuctl.flows.doctor.project import ProjectChecks

__all__ = ["Check", "ProjectChecks", "examine", "machine_finding"]
