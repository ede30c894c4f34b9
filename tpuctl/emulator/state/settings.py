"""How the owner of a local cloud wants it to behave: quota, policies, what is closed or denied."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.state.text import did_you_mean

__all__ = ["DEFAULTS", "Settings"]

# Every setting with its value in a fresh local cloud.
DEFAULTS: Mapping[str, Any] = {
    "nodes": "allowed",  # or "denied": creation of TPU nodes (API v1) is refused as Google does
    "quota": {},  # {"LIMIT-ID": {"zone or region": cores or chips}}; what is absent is unlimited
    "policies": [],  # organization policy constraints in force: "compute.vmExternalIpAccess"
    "denied_permissions": [],  # what nobody may, not even the owner: "tpu.nodes.create"
    "propagation": 0,  # seconds until a changed policy is felt; it is shown at once
    "reservations": [],  # those that there are: "projects/P/locations/Z/reservations/R"
}
_LONGEST_SECONDS = 10**6
_LIMIT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}")
_PLACE = re.compile(r"global|[a-z]+-[a-z]+[0-9]+(?:-[a-z])?")
_NAMES = {
    "policies": re.compile(r"(?:constraints/)?([a-z][A-Za-z]*(?:\.[A-Za-z]+)+)"),
    "denied_permissions": re.compile(r"([a-z][A-Za-z0-9]*(?:\.[A-Za-z0-9]+){2,})"),
    "reservations": re.compile(r"(projects/[^/]+/locations/[^/]+/reservations/[^/]+)"),
}
_EXAMPLES = {
    "policies": "constraint, as compute.vmExternalIpAccess",
    "denied_permissions": "permission, as tpu.nodes.create",
    "reservations": "reservation, as projects/P/locations/Z/reservations/R",
}


class Settings:
    """Kept in the store: they outlive the server, and `local reset` forgets them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> dict[str, Any]:
        """Every setting with its value."""
        return {**DEFAULTS, **(self._store.get_json("setting", "all") or {})}

    def get(self, name: str) -> Any:
        """Raises KeyError for a name that is not in DEFAULTS."""
        return self.all()[name]

    def put(self, name: str, value: Any) -> None:
        """Raises KeyError for a name that is not in DEFAULTS."""
        changed = self.all()
        if name not in changed:
            raise KeyError(name)
        changed[name] = value
        self._store.put_json("setting", "all", changed)

    def change(self, changes: Mapping[str, Any]) -> None:
        """Change those named, all or none; ApiError names what is wrong with one.

        Quota: what is given is joined to what there is, null takes a limit away. Lists of
        names: a list replaces them, {name: true or false} switches single ones.
        """
        current = self.all()
        for name, value in changes.items():
            if name == "nodes":
                current[name] = _door(value)
            elif name == "quota":
                current[name] = _quota(current[name], value)
            elif name == "propagation":
                current[name] = _seconds(name, value)
            elif name in _NAMES:
                current[name] = _switched(name, current[name], value)
            else:
                raise _unknown(name)
        self._store.put_json("setting", "all", current)


def _unknown(name: str) -> ApiError:
    known = ["pace", *DEFAULTS]
    return invalid(
        f"There is no setting {name!r}.{did_you_mean(name, known)} The settings are "
        f"{', '.join(known)}."
    )


def _door(value: Any) -> str:
    if value not in ("allowed", "denied"):
        raise invalid(f"nodes is allowed or denied, not {value!r}.")
    return str(value)


def _seconds(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LONGEST_SECONDS:
        raise invalid(f"{name} is a number of seconds of at least 0, not {value!r}.")
    return float(value)


def _quota(current: Mapping[str, Any], changes: Any) -> dict[str, Any]:
    if not isinstance(changes, dict):
        raise invalid("quota is an object: the limit's id, then the zone or region, then a number.")
    quota = {limit: dict(places) for limit, places in current.items()}
    for limit, places in changes.items():
        if not _LIMIT.fullmatch(limit):
            raise invalid(f"{limit!r} is no quota limit's id.")
        if places is None:
            quota.pop(limit, None)
            continue
        if not isinstance(places, dict):
            raise invalid(f"The quota {limit} is an object of zones or regions with numbers.")
        for place, number in places.items():
            _require_place(place)
            if number is None:
                quota.get(limit, {}).pop(place, None)
            elif isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise invalid(f"A quota is a whole number of at least 0, not {number!r}.")
            else:
                quota.setdefault(limit, {})[place] = number
    return {limit: places for limit, places in quota.items() if places}


def _require_place(place: str) -> None:
    known = [*catalog.zones(), *{catalog.region_of(zone) for zone in catalog.zones()}]
    if not _PLACE.fullmatch(place):
        raise invalid(f"{place!r} is no zone or region.{did_you_mean(place, known)}")


def _switched(name: str, current: list[str], changes: Any) -> list[str]:
    if isinstance(changes, list):
        current, changes = [], dict.fromkeys(map(str, changes), True)
    if not isinstance(changes, dict):
        raise invalid(f"{name} is a list of names, or an object of names with true or false.")
    chosen = set(current)
    for given, is_on in changes.items():
        found = _NAMES[name].fullmatch(given)
        if found is None:
            raise invalid(f"{given!r} is no {_EXAMPLES[name]}.")
        if not isinstance(is_on, bool):
            raise invalid(f"{given} is true or false, not {is_on!r}.")
        (chosen.add if is_on else chosen.discard)(found[1])
    return sorted(chosen)
