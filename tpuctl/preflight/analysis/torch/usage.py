"""How a project uses PyTorch: the names of libraries in its code, and which library trains."""

from __future__ import annotations

import ast
import re

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.findings import Target

LIGHTNING = r"(?:lightning(?:\.pytorch|\.fabric)?|pytorch_lightning|lightning_fabric)"
# Classes that train, or move training, to the TPU that they find.
ACCELERATORS = re.compile(rf"accelerate\.(?:accelerator\.)?Accelerator|{LIGHTNING}\.Fabric")
LIGHTNING_TRAINERS = re.compile(rf"{LIGHTNING}\.Trainer")
TRAINERS = re.compile(r"(?:transformers|trl)(?:\.trainer\w*)?\.(?!TF)\w*Trainer")
DEVICES = re.compile(r"torch_xla\.device|(?:torch_xla\.core\.xla_model\.)?xla_device")


def library_names(project: Project) -> frozenset[str]:
    """The names of libraries' code that a project uses, cached: qualified names, and methods that
    it calls on objects of unknown classes.

    Options, attributes, keywords, and texts are none.
    """
    key = "library names"
    if key not in project.cache:
        names: set[str] = set()
        for module in project:
            for node in module.of_types(ast.Name, ast.Attribute):
                name = module.names.of(node)
                if name is None and isinstance(node, ast.Name) and module.names.stars:
                    name = node.id
                if name is not None and name.partition(".")[0] not in project.modules:
                    names.add(name)
            names.update(
                call.func.attr
                for call in module.calls
                if isinstance(call.func, ast.Attribute) and module.names.of(call.func) is None
            )
        project.cache[key] = frozenset(names)
    names_used: frozenset[str] = project.cache[key]
    return names_used


def uses(project: Project, pattern: re.Pattern[str]) -> bool:
    """Whether a name of a library that the project uses matches a pattern as a whole."""
    return any(map(pattern.fullmatch, library_names(project)))


def uses_training_library(project: Project) -> bool:
    """Whether a library moves the project's training to the TPU."""
    return any(uses(project, names) for names in (ACCELERATORS, LIGHTNING_TRAINERS, TRAINERS))


def uses_xla_device(project: Project) -> bool:
    """Whether the project itself asks for the device of PyTorch/XLA."""
    return uses(project, DEVICES) or (project.uses_torch_xla and "xla" in project.texts)


def is_torch_on_tpu(project: Project, target: Target) -> bool:
    """Whether a project is to train with PyTorch on a TPU: its imports say so, or its stack."""
    if project.uses_torch_xla or uses_training_library(project):
        return True
    return target.framework == "torch" and any(
        name.partition(".")[0] == "torch"
        for module in project
        for name in module.names.imports.values()
    )
