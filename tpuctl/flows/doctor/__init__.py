"""Read-only checks for everything that a stack needs."""

from tpuctl.flows.doctor.checks import Check, run_checks
from tpuctl.flows.doctor.project import ProjectChecks
from tpuctl.flows.doctor.workstation import machine_finding

__all__ = ["Check", "ProjectChecks", "machine_finding", "run_checks"]
