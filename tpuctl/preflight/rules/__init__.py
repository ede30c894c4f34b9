"""The rules of the check: one in each file, which is registered by being there.

A file tells all of its rule: `RULE` is what the pages say of it, and `find` yields what breaks it
in a project. It is named by its code and its name, `tpu101_boolean_mask.py`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib import import_module

from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.findings import Finding, Rule, Target

__all__ = ["FINDERS", "NOT_PYTHON", "RULES", "matching_codes"]

NOT_PYTHON = "TPU000"  # the one rule for files that cannot be read
CODE_PREFIX = re.compile(r"TPU\d*")
Find = Callable[[Project, Target], Iterator[Finding]]

_MODULES = [
    import_module(f"{__name__}.{module.name}")
    for module in sorted(pkgutil.iter_modules(__path__))
    if not module.name.startswith("_")
]
RULES: dict[str, Rule] = {module.RULE.code: module.RULE for module in _MODULES}
FINDERS: dict[str, Find] = {module.RULE.code: module.find for module in _MODULES}


def matching_codes(word: str) -> frozenset[str]:
    """The codes that `TPU101`, `TPU1` or `boolean-mask` stands for; none of an unknown word."""
    selector = word.strip()
    if CODE_PREFIX.fullmatch(selector.upper()):
        return frozenset(code for code in RULES if code.startswith(selector.upper()))
    return frozenset(code for code, rule in RULES.items() if rule.name == selector.lower())
