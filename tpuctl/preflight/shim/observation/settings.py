"""The settings of a rehearsal, from the file that TPUCTL_REHEARSAL names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The settings; `mode` is xla, replicas or compile."""

    observations: str
    mode: str = "xla"
    steps: int = 8
    replicas: int = 1  # of a TensorFlow strategy
    devices: int = 1  # of JAX, in all slices
    slices: int = 1
    processes: int = 1  # of JAX, each with as many devices
    process: int = 0  # the number of this one
    coordinator: str = ""  # the address at which they meet
    torch_devices: int = 1  # of PyTorch/XLA
    script: str = ""
    root: str = ""
    kind: str = "vm"
    grace: float = 30.0
    compile: Mapping[str, Any] | None = None


def load(path: str) -> Settings:
    """Read the settings, ignoring unknown keys."""
    with open(path, encoding="utf-8") as file:
        plain = json.load(file)
    fields = {name: plain[name] for name in Settings.__dataclass_fields__ if name in plain}
    settings = Settings(**fields)
    root = settings.root or os.path.dirname(settings.script) or os.getcwd()
    return Settings(**{**fields, "root": os.path.realpath(root)})
