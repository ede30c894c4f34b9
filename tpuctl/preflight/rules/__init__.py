"""The rules, a family in each file: what it looks for, and what the pages say of it."""

from __future__ import annotations

from tpuctl.preflight.findings import Find, Rule
from tpuctl.preflight.rules import (
    batches,
    control,
    data,
    hygiene,
    operations,
    reading,
    setup,
    shapes,
    versions,
)

__all__ = ["FAMILIES", "RULES"]

_MODULES = (control, operations, shapes, batches, data, setup, versions, hygiene)
FAMILIES: tuple[Find, ...] = tuple(one.find for one in _MODULES)
RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in sorted(
        (rule for one in (reading, *_MODULES) for rule in one.RULES), key=lambda rule: rule.code
    )
}
