"""A custom role as `doctor --role` prints it: permissions by what they are for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CustomRole", "Grant", "RoleGroup"]


@dataclass(frozen=True)
class RoleGroup:
    """Permissions with what they are for; `path` is named where they are not always needed."""

    purpose: str
    permissions: tuple[str, ...]
    path: str = ""


@dataclass(frozen=True)
class Grant:
    """What the role cannot hold, or should not: another binding, made by this command."""

    why: str
    command: str


@dataclass(frozen=True)
class CustomRole:
    id: str
    title: str
    description: str
    project: str
    groups: tuple[RoleGroup, ...]
    grants: tuple[Grant, ...]
    shown: tuple[str, ...] = ()  # what only tells more: of quota, of policies

    @property
    def permissions(self) -> tuple[str, ...]:
        return tuple(sorted(name for group in self.groups for name in group.permissions))
