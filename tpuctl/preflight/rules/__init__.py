"""The rules of the check: each module of the packages in this one defines and registers a rule.

`RULE` holds the rule's documentation, and `find` yields its findings in a project. The module is
named after the rule's code and name: `tensorflow_steps/tpu101_boolean_mask.py`. Its package says
what it is about: `FRAMEWORKS` has those that apply only to projects that use a framework.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.requirements import requirements_of
from tpuctl.preflight.analysis.torch.usage import is_torch_on_tpu
from tpuctl.preflight.findings import Finding, Rule, Target

NOT_PYTHON = "TPU000"  # the only rule that applies to files that cannot be parsed
CODE_PREFIX = re.compile(r"TPU\d*")
Find = Callable[[Project, Target], Iterable[Finding]]
Value = TypeVar("Value")


def _is_for_torch_xla(project: Project, target: Target) -> bool:
    """The device of torch-tpu needs other advice. `import torch` loads it: scripts need not."""
    if project.uses_torch_xla:
        return True
    return (
        is_torch_on_tpu(project, target)
        and not project.drives_torch
        and all(entry.name != "torch-tpu" for entry in requirements_of(project, target))
    )


# Not those of HOST_PACKAGES: TensorFlow may train a model of another library.
FRAMEWORKS: Mapping[str, Callable[[Project, Target], bool]] = {
    "jax": lambda project, target: project.uses_jax,
    "jax_host": lambda project, target: project.uses_jax,
    "jax_processes": lambda project, target: project.uses_jax,
    "tensorflow_steps": lambda project, target: project.uses_tensorflow,
    "torch": _is_for_torch_xla,
    "torch_processes": _is_for_torch_xla,
}
# What TensorFlow does on the host. Only a program of another framework that imports nothing of
# TensorFlow or Keras certainly does none of it, and TPU nodes run no other framework.
HOST_PACKAGES = ("tensorflow_host", "tensorflow_input")
# About what the job of one script installs; the others are about the code of all files.
JOB_RULES = frozenset(("TPU000", *(f"TPU50{number}" for number in range(3, 9))))

_FILES = sorted(Path(__file__).parent.glob("*/tpu*.py"), key=lambda path: path.name)
_MODULES = {path.stem.partition("_")[0].upper(): (path.parent.name, path.stem) for path in _FILES}


class _OfModules(Mapping[str, Value]):
    """What the rules' modules define under a name, by code.

    A module is imported when it is first used: a script for one framework needs no rules about
    the others.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, code: str) -> Value:
        module = import_module(".".join((__name__, *_MODULES[code])))
        value: Value = getattr(module, self._name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


RULES: Mapping[str, Rule] = _OfModules[Rule]("RULE")
FINDERS: Mapping[str, Find] = _OfModules[Find]("find")


def codes_for(project: Project, target: Target) -> Iterator[str]:
    """The codes of the rules that may apply to a project, by its imports and target."""
    applies = dict(zip(FRAMEWORKS, frameworks_of(project, target), strict=True))
    may_use_tensorflow = target.kind == "node" or project.may_use_tensorflow
    applies |= dict.fromkeys(HOST_PACKAGES, may_use_tensorflow)
    for code, (package, _) in _MODULES.items():
        if applies.get(package, True):
            yield code


def frameworks_of(project: Project, target: Target) -> tuple[bool, ...]:
    """Which frameworks' rules apply to a project."""
    return tuple(applies(project, target) for applies in FRAMEWORKS.values())


def matching_codes(word: str) -> frozenset[str]:
    """The codes selected by a code, a prefix or a name (`TPU101`, `TPU1`, `boolean-mask`).

    Empty for an unknown selector.
    """
    selector = word.strip()
    if CODE_PREFIX.fullmatch(selector.upper()):
        return frozenset(code for code in RULES if code.startswith(selector.upper()))
    return frozenset(code for code, rule in RULES.items() if rule.name == selector.lower())
