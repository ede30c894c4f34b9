"""Permissions and predefined roles by name: which there are.

The data is `predefined_roles.toml` beside this file. TPU nodes and queued resources share the
permissions `tpu.nodes.*`: there are none named after queued resources (see the file's source,
`map.json`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from tpuctl.emulator.state.errors import invalid

__all__ = [
    "PredefinedRole",
    "check_asked",
    "check_for_role",
    "known_permissions",
    "predefined_roles",
]

_SHAPE = re.compile(r"[a-z][a-zA-Z0-9]*(?:\.[a-zA-Z0-9]+){2,}")


@dataclass(frozen=True)
class PredefinedRole:
    """A role that Google offers, with the permissions of it that are known here."""

    name: str
    title: str
    lines: tuple[str, ...]  # as the file has them: "compute.disks: get list"

    @cached_property
    def permissions(self) -> tuple[str, ...]:
        """In order; few roles are ever asked for theirs."""
        verbs = _load().verbs
        permissions = []
        for line in self.lines:
            scope, _, words = line.partition(":")
            resources = [scope] if "." in scope else _resources(scope, verbs)
            for resource in resources:
                chosen = verbs[resource] if words.strip() == "*" else words.split()
                permissions += [f"{resource}.{verb}" for verb in chosen]
        return tuple(sorted(permissions))


@dataclass(frozen=True)
class _Catalog:
    verbs: dict[str, frozenset[str]]  # by "tpu.nodes"
    complete: frozenset[str]  # services whose permissions are all known
    not_in_projects: tuple[str, ...]
    roles: dict[str, PredefinedRole]


def known_permissions(*, for_projects: bool = False) -> list[str]:
    """Every permission that is known by name, in order."""
    catalog = _load()
    names = [f"{resource}.{verb}" for resource in catalog.verbs for verb in _verbs(resource)]
    return sorted(name for name in names if not for_projects or not _is_above_projects(name))


def predefined_roles() -> dict[str, PredefinedRole]:
    """By name, as `roles/tpu.admin`."""
    return _load().roles


def check_for_role(permissions: Iterable[str], *, in_project: bool) -> None:
    """Refuse what a custom role cannot hold.

    Google's words are from terraform-google-modules/terraform-google-iam#158.
    """
    for name in permissions:
        if not _exists(name) or (in_project and _is_above_projects(name)):
            raise invalid(f"Permission {name} is not valid.")


def check_asked(permissions: Iterable[str], *, in_project: bool) -> None:
    """Refuse what `testIamPermissions` cannot be asked.

    Google refuses names that are no permissions of such a resource (google-cloud-java#722); its
    words were not found.
    """
    for name in permissions:
        if "*" in name:
            raise invalid(f"Permissions with wildcards are not allowed: {name}.")
        if not _exists(name) or (in_project and _is_above_projects(name)):
            raise invalid(f"Permission {name} is not valid for this resource.")


def _exists(name: str) -> bool:
    """Of services that are listed in part, any well-formed name of a resource not listed passes."""
    if not _SHAPE.fullmatch(name):
        return False
    catalog = _load()
    service, resource, verb = name.split(".", 2)
    verbs = catalog.verbs.get(f"{service}.{resource}")
    if verbs is None:
        return service not in catalog.complete
    return verb in verbs


def _is_above_projects(name: str) -> bool:
    return any(
        name.startswith(each) if each.endswith(".") else name == each
        for each in _load().not_in_projects
    )


def _verbs(resource: str) -> list[str]:
    return sorted(_load().verbs[resource])


def _resources(service: str, verbs: Iterable[str]) -> list[str]:
    """What a service has permissions for: "compute.disks" and such."""
    return [resource for resource in verbs if resource.startswith(f"{service}.")]


@cache
def _load() -> _Catalog:
    text = files("tpuctl.emulator.iam").joinpath("predefined_roles.toml").read_text("utf-8")
    data = tomllib.loads(text)
    verbs = {resource: frozenset(words.split()) for resource, words in data["permissions"].items()}
    return _Catalog(
        verbs=verbs,
        complete=frozenset(data["complete"]),
        not_in_projects=tuple(data["not_in_projects"]),
        roles={
            name: PredefinedRole(name, role["title"], tuple(role.get("permissions", ())))
            for name, role in data["roles"].items()
        },
    )
