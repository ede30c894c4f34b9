"""The custom role that `doctor --role` prints: permissions by purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class RoleGroup:
    """Permissions with a purpose; `path` is set if they are not always needed."""

    purpose: str
    permissions: tuple[str, ...]
    path: str = ""


@dataclass(frozen=True)
class Grant:
    """A separate binding, for what the role cannot or should not contain, with its command."""

    purpose: str
    command: str


@dataclass(frozen=True)
class CustomRole:
    stage: ClassVar = "GA"  # the launch stage that IAM shows

    id: str
    title: str
    description: str
    project: str
    groups: tuple[RoleGroup, ...]
    grants: tuple[Grant, ...]
    optional_permissions: tuple[str, ...] = ()  # what only tells more: of quota, of policies

    @property
    def permissions(self) -> tuple[str, ...]:
        return tuple(sorted(name for group in self.groups for name in group.permissions))
