"""Machines of the local cloud: folders with an address, SSH and processes of their own."""

from tpuctl.emulator.machines.host import LocalHost
from tpuctl.emulator.machines.images import ImageStore, NoImage

__all__ = ["ImageStore", "LocalHost", "NoImage"]
