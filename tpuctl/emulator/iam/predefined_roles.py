"""Known permissions and predefined roles.

The data is in `predefined_roles.toml`. TPU nodes and queued resources share the permissions
`tpu.nodes.*`: queued resources have none of their own (see the file's source, `map.json`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.text import did_you_mean

_PERMISSION = re.compile(r"[a-z][a-zA-Z0-9]*(?:\.[a-zA-Z0-9]+){2,}")


@dataclass(frozen=True)
class PredefinedRole:
    """A Google role with the permissions that are known here."""

    name: str
    title: str
    lines: tuple[str, ...]  # from the file: "compute.disks: get list"

    @cached_property
    def permissions(self) -> tuple[str, ...]:
        """Sorted. Expanded lazily: most roles are never used."""
        verbs = _load().verbs
        permissions = []
        for line in self.lines:
            scope, _, words = line.partition(":")
            resources = [scope] if "." in scope else _resources(scope, verbs)
            for resource in resources:
                role_verbs = verbs[resource] if words.strip() == "*" else words.split()
                permissions += [f"{resource}.{verb}" for verb in role_verbs]
        return tuple(sorted(permissions))


@dataclass(frozen=True)
class _Catalog:
    verbs: dict[str, frozenset[str]]  # by "tpu.nodes"
    complete: frozenset[str]  # services whose permissions are all listed
    not_in_projects: tuple[str, ...]
    roles: dict[str, PredefinedRole]


def known_permissions(*, for_projects: bool = False) -> list[str]:
    """All known permissions, sorted."""
    catalog = _load()
    names = [f"{resource}.{verb}" for resource, verbs in catalog.verbs.items() for verb in verbs]
    return sorted(name for name in names if not for_projects or not _is_above_projects(name))


def predefined_roles() -> dict[str, PredefinedRole]:
    """Predefined roles by name, such as `roles/tpu.admin`."""
    return _load().roles


def check_for_role(permissions: Iterable[str], *, in_project: bool) -> None:
    """Raise an error for a permission that a custom role cannot have.

    Google's wording is from terraform-google-modules/terraform-google-iam#158.
    """
    for name in permissions:
        if not _exists(name) or (in_project and _is_above_projects(name)):
            raise invalid(f"Permission {name} is not valid.")


def check_testable(permissions: Iterable[str], *, in_project: bool) -> None:
    """Raise an error for a permission that `testIamPermissions` does not accept.

    Google rejects permissions that do not apply to the resource (google-cloud-java#722); the
    wording is a guess.
    """
    for name in permissions:
        if "*" in name:
            raise invalid(f"Permissions with wildcards are not allowed: {name}.")
        if not _exists(name) or (in_project and _is_above_projects(name)):
            raise invalid(f"Permission {name} is not valid for this resource.")


def _exists(name: str) -> bool:
    """Whether a permission is known; a partly listed service may have resources not listed."""
    if not _PERMISSION.fullmatch(name):
        return False
    catalog = _load()
    service, resource, verb = name.split(".", 2)
    verbs = catalog.verbs.get(f"{service}.{resource}")
    if verbs is None:
        return service not in catalog.complete
    return verb in verbs


def _is_above_projects(name: str) -> bool:
    return any(
        name.startswith(project) if project.endswith(".") else name == project
        for project in _load().not_in_projects
    )


def _resources(service: str, verbs: Iterable[str]) -> list[str]:
    """The resources of a service that have permissions: "compute.disks"."""
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


def require_role(name: str) -> str:
    """The full name of a predefined role, also if given without `roles/`."""
    role = f"roles/{name.removeprefix('roles/')}"
    if role not in predefined_roles():
        raise invalid(f"Unknown role {name!r}.{did_you_mean(role, predefined_roles())}")
    return role
