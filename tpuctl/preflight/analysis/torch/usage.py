"""How a project uses PyTorch: which library trains, and whether it is for a TPU."""

from __future__ import annotations

import re

from tpuctl.preflight.analysis.program.library_names import uses
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.findings import Target

LIGHTNING = r"(?:lightning(?:\.pytorch|\.fabric)?|pytorch_lightning|lightning_fabric)"
# Classes that train, or move training, to the TPU that they find.
ACCELERATORS = re.compile(rf"accelerate\.(?:accelerator\.)?Accelerator|{LIGHTNING}\.Fabric")
LIGHTNING_TRAINERS = re.compile(rf"{LIGHTNING}\.Trainer")
TRAINERS = re.compile(r"(?:transformers|trl)(?:\.trainer\w*)?\.(?!TF)\w*Trainer")
TRAINING = re.compile(
    "|".join(names.pattern for names in (ACCELERATORS, LIGHTNING_TRAINERS, TRAINERS))
)
# The packages of all these.
TRAINING_PACKAGES = (
    *("accelerate", "transformers", "trl"),
    *("lightning", "pytorch_lightning", "lightning_fabric"),
)
DEVICES = re.compile(r"torch_xla\.device|(?:torch_xla\.core\.xla_model\.)?xla_device")


def uses_training_library(project: Project) -> bool:
    """Whether a library moves the project's training to the TPU."""
    return not project.packages.isdisjoint(TRAINING_PACKAGES) and uses(project, TRAINING)


def uses_xla_device(project: Project) -> bool:
    """Whether the project itself asks for the device of PyTorch/XLA."""
    return uses(project, DEVICES) or (project.uses_torch_xla and "xla" in project.texts)


def is_torch_on_tpu(project: Project, target: Target) -> bool:
    """Whether a project is to train with PyTorch on a TPU: its imports say so, or its stack."""
    if project.uses_torch_xla or uses_training_library(project):
        return True
    return target.framework == "torch" and "torch" in project.packages
