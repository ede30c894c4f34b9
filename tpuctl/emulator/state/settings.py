"""Settings of a local cloud: quota, organization policies, denied permissions and others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.state.text import did_you_mean

# Every setting with its default.
DEFAULTS: Mapping[str, Any] = {
    "nodes": "allowed",  # or "denied": refuse to create TPU nodes (API v1) as Google does
    "quota": {},  # {"LIMIT-ID": {"zone or region": cores or chips}}; missing means unlimited
    "policies": [],  # enforced organization policy constraints: "compute.vmExternalIpAccess"
    "denied_permissions": [],  # denied to all callers, even the owner: "tpu.nodes.create"
    "propagation": 0,  # seconds until a policy change takes effect; reads show it immediately
    "address": "127.0.0.1",  # of this computer, for firewall rules; private ones are inside
    "reservations": [],  # existing ones: "projects/P/locations/Z/reservations/R"
    "devices": 0,  # of TPUs that a program on a machine sees at most; 0 for as many as there are
    "zones": [],  # of those that Google opens to selected projects, the open ones
}
_MAX_SECONDS = 10**6
_LIMIT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}")
_LOCATION = re.compile(r"global|[a-z]+-[a-z]+[0-9]+(?:-[a-z])?")
_NAMES = {
    "policies": re.compile(r"(?:constraints/)?([a-z][A-Za-z]*(?:\.[A-Za-z]+)+)"),
    "denied_permissions": re.compile(r"([a-z][A-Za-z0-9]*(?:\.[A-Za-z0-9]+){2,})"),
    "reservations": re.compile(r"(projects/[^/]+/locations/[^/]+/reservations/[^/]+)"),
    "zones": re.compile(rf"({'|'.join(sorted(catalog.ALLOWLIST_ZONES))})"),
}
_EXAMPLES = {
    "policies": "constraint, for example compute.vmExternalIpAccess",
    "denied_permissions": "permission, for example tpu.nodes.create",
    "reservations": "reservation, for example projects/P/locations/Z/reservations/R",
    "zones": f"zone that is closed by default: {', '.join(sorted(catalog.ALLOWLIST_ZONES))}",
}


class Settings:
    """Stored settings: they survive restarts, and `local reset` deletes them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> dict[str, Any]:
        """Every setting with its value."""
        return {**DEFAULTS, **(self._store.get_json("setting", "all") or {})}

    def get(self, name: str) -> Any:
        """Raises KeyError for an unknown name."""
        return self.all()[name]

    def put(self, name: str, value: Any) -> None:
        """Raises KeyError for an unknown name."""
        changed = self.all()
        if name not in changed:
            raise KeyError(name)
        changed[name] = value
        self._store.put_json("setting", "all", changed)

    def change(self, changes: Mapping[str, Any]) -> None:
        """Apply all changes or none; ApiError describes an invalid one.

        Quota limits are merged; null removes a limit. For lists of names, a list replaces them and
        {name: true or false} adds or removes single names.
        """
        current = self.all()
        for name, value in changes.items():
            if name == "nodes":
                current[name] = _access(value)
            elif name == "quota":
                current[name] = _quota(current[name], value)
            elif name == "address":
                current[name] = _address(value)
            elif name == "propagation":
                current[name] = _seconds(name, value)
            elif name == "devices":
                current[name] = _devices(value)
            elif name in _NAMES:
                current[name] = _switch_names(name, current[name], value)
            else:
                raise _unknown_setting(name)
        self._store.put_json("setting", "all", current)


def _unknown_setting(name: str) -> ApiError:
    names = ["pace", *DEFAULTS]
    return invalid(
        f"Unknown setting {name!r}.{did_you_mean(name, names)} Available settings: "
        f"{', '.join(names)}."
    )


def _access(value: Any) -> str:
    if value not in ("allowed", "denied"):
        raise invalid(f"nodes must be allowed or denied, not {value!r}.")
    return str(value)


def _address(value: Any) -> str:
    try:
        return str(IPv4Address(value if isinstance(value, str) else ""))
    except ValueError:
        raise invalid(f"address must be an IPv4 address, not {value!r}.") from None


def _seconds(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MAX_SECONDS:
        raise invalid(f"{name} must be a number of seconds, 0 or more, not {value!r}.")
    return float(value)


def _devices(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise invalid(f"devices must be a whole number, or 0 for no limit, not {value!r}.")
    return value


def _quota(current: Mapping[str, Any], changes: Any) -> dict[str, Any]:
    if not isinstance(changes, dict):
        raise invalid("quota must map limit IDs to objects of zones or regions and numbers.")
    quota = {limit: dict(locations) for limit, locations in current.items()}
    for limit, amounts in changes.items():
        if not _LIMIT.fullmatch(limit):
            raise invalid(f"Invalid quota limit ID: {limit!r}.")
        if amounts is None:
            quota.pop(limit, None)
            continue
        if not isinstance(amounts, dict):
            raise invalid(f"The quota {limit} must map zones or regions to numbers.")
        for location, number in amounts.items():
            _require_location(location)
            if number is None:
                quota.get(limit, {}).pop(location, None)
            elif isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise invalid(f"A quota must be a whole number, 0 or more, not {number!r}.")
            else:
                quota.setdefault(limit, {})[location] = number
    return {limit: amounts for limit, amounts in quota.items() if amounts}


def _require_location(location: str) -> None:
    locations = [*catalog.zones(), *{catalog.region_of(zone) for zone in catalog.zones()}]
    if not _LOCATION.fullmatch(location):
        raise invalid(f"Unknown zone or region: {location!r}.{did_you_mean(location, locations)}")


def _switch_names(name: str, current: list[str], changes: Any) -> list[str]:
    if isinstance(changes, list):
        current, changes = [], dict.fromkeys(map(str, changes), True)
    if not isinstance(changes, dict):
        raise invalid(f"{name} must be a list of names, or an object of names with true or false.")
    names = set(current)
    for entry, is_on in changes.items():
        match = _NAMES[name].fullmatch(entry)
        if match is None:
            raise invalid(f"{entry!r} is not a valid {_EXAMPLES[name]}.")
        if not isinstance(is_on, bool):
            raise invalid(f"{entry} must be true or false, not {is_on!r}.")
        (names.add if is_on else names.discard)(match[1])
    return sorted(names)
