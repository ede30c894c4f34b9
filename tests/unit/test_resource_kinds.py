"""Every kind of resource declares all required attributes.

Kinds are discovered: each class in `tpuctl.resources` that defines `kind`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpuctl.resources
from tpuctl.flows.stack.permissions import VIEW, required_permissions
from tpuctl.model.plan import Action
from tpuctl.model.status.inventory import GROUPS, InventoryItem, ResourceKind
from tpuctl.resources.base import CloudKind, Query, StackResource
from tpuctl.resources.composition import KINDS

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = ROOT / "docs" / "design" / "architecture.md"
CASES = ROOT / "tests" / "cases"


def all_kinds() -> list[type[CloudKind]]:
    kinds = []
    for module in pkgutil.walk_packages(tpuctl.resources.__path__, "tpuctl.resources."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, CloudKind) and "kind" in vars(value):
                kinds.append(value)
    return [*dict.fromkeys(kinds)]


def missing_parts(kind: type[CloudKind]) -> Iterator[str]:
    """The incomplete or missing declarations of the kind."""
    if kind not in KINDS:
        yield "tpuctl.resources.composition.KINDS"
    if getattr(kind, "group", None) not in GROUPS:
        yield "group"
    if not getattr(kind, "label", ""):
        yield "label"
    if bool(kind.unlisted_reason) == _is_own(kind, "list_all"):
        yield "list_all or unlisted_reason"
    if kind.is_billable != _is_own(kind, "cost"):
        yield "cost or is_billable"
    if kind.is_tpu and not kind.is_machine:
        yield "is_machine"
    if kind.is_zonal and not _is_own(kind, "from_inventory"):
        yield "from_inventory"
    if issubclass(kind, StackResource):
        if not any(need.action == VIEW for need in _needs(kind)):
            yield "permissions"
        if not (CASES / kind.kind).is_dir():
            yield f"tests/cases/{kind.kind}"
        if not re.search(rf"(?<![\w-]){kind.kind}(?![\w-])", drawn_graph()):
            yield "the graph in docs/design/architecture.md"


def drawn_graph() -> str:
    page = ARCHITECTURE.read_text("utf-8")
    [graph] = [block for block in page.split("```")[1::2] if "─" in block]
    return graph


def _is_own(kind: type[CloudKind], name: str) -> bool:
    """Whether the class overrides the default."""
    base = next(base_class for base_class in (ResourceKind, CloudKind) if name in vars(base_class))
    return getattr(kind, name).__func__ is not vars(base)[name].__func__


def _needs(kind: type[CloudKind]) -> list[object]:
    return list(required_permissions([kind])) if kind in KINDS else []


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.kind)
def test_every_kind_is_complete(kind: type[CloudKind]) -> None:
    assert [*missing_parts(kind)] == []


def test_listed_kinds_are_unique_and_have_no_unlisted_reason() -> None:
    assert len({kind.kind for kind in KINDS}) == len(KINDS) == len(all_kinds())

    class Listed(Toy):
        unlisted_reason = "not listed"

        @classmethod
        def list_all(cls, query: Query) -> Iterator[InventoryItem]:
            return iter(())

    assert "list_all or unlisted_reason" in missing_parts(Listed)


def test_permissions_match_actions() -> None:
    """No plan would need the permission of a misspelled action."""
    done = {VIEW, "connect", *(action.value for action in Action)}
    for kind in KINDS:
        actions = {permission.action for permission in required_permissions([kind])}
        assert actions <= done, kind.kind
        assert {*kind.optional} <= actions, kind.kind
        assert all(kind.optional.values()), kind.kind


class Toy(StackResource):
    """A new, incomplete kind."""

    kind = "toy"
    is_billable = True
    is_zonal = True


def test_missing_parts_of_kind_are_named() -> None:
    assert [*missing_parts(Toy)] == [
        "tpuctl.resources.composition.KINDS",
        "group",
        "label",
        "list_all or unlisted_reason",
        "cost or is_billable",
        "from_inventory",
        "permissions",
        "tests/cases/toy",
        "the graph in docs/design/architecture.md",
    ]
