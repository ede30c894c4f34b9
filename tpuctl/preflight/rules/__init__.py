"""The rules of the check: each module in this package defines and registers one.

`RULE` holds the rule's documentation, and `find` yields its findings in a project. The module is
named after the rule's code and name: `tpu101_boolean_mask.py`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib import import_module

from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.findings import Finding, Rule, Target

__all__ = ["FINDERS", "NOT_PYTHON", "RULES", "matching_codes"]

NOT_PYTHON = "TPU000"  # the only rule that applies to files that cannot be parsed
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
    """The codes selected by a code, a prefix or a name (`TPU101`, `TPU1`, `boolean-mask`).

    Empty for an unknown selector.
    """
    selector = word.strip()
    if CODE_PREFIX.fullmatch(selector.upper()):
        return frozenset(code for code in RULES if code.startswith(selector.upper()))
    return frozenset(code for code, rule in RULES.items() if rule.name == selector.lower())
