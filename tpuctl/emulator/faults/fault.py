"""Faults as resources: what each does, what it applies to, and how often it was triggered.

faults.add({"kind": "unavailable", "method": "CreateNode", "times": 2})
faults.take("stockout", zone="us-central1-b", type="v2-8")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.faults.google_messages import MESSAGES
from tpuctl.emulator.state.errors import CODES, invalid, missing
from tpuctl.emulator.state.locations import regions, zones
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.state.text import did_you_mean
from tpuctl.local_cloud.defaults import OWNER
from tpuctl.local_cloud.fault_kinds import FIELDS, KINDS, MATCHES

_COUNTS = ("times", "at")
# Kinds that happen once to nodes and machines, independent of any call.
SCHEDULED = ("preempt", "maintenance", "host-unreachable", "disk-full")
# Methods that a quota fault applies to by default.
_CREATIONS = "CreateNode,CreateQueuedResource,Instances/Insert"
_UNLIMITED = "unlimited"
# Conditions that last until the fault is removed, and what they apply to by default.
_LASTING: Mapping[str, Mapping[str, str]] = {
    "billing-disabled": {
        "method": "google.cloud.compute.*,google.cloud.tpu.*,storage.*,*EnableService*"
    },
    "api-disabled": {"method": "google.cloud.tpu.*"},
    "missing-role": {"caller": OWNER},
    "weather": {},
}
_MAX_TEXT_LENGTH = 10_000
_CHOICES = {"body": ("request", "response"), "mode": ("silent", "refused")}
_READ_ONLY_VERBS = re.compile(
    r"(?:get|list|search|test|wait|query|fetch|aggregated|batchget|lookup|check|lint|sign)",
    re.IGNORECASE,
)


class Fault:
    """One fault. `matched` counts requests that matched it, `applied` those it was applied to."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    @property
    def id(self) -> str:
        return str(self.fields["id"])

    @property
    def kind(self) -> str:
        return str(self.fields["kind"])

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)

    def is_exhausted(self) -> bool:
        """Whether it cannot be applied any more."""
        times, at = self.fields["times"], self.get("at")
        if times == _UNLIMITED:
            return False
        if self.fields["applied"] >= times:
            return True
        return at is not None and self.fields["matched"] >= at + times - 1

    def matches(self, attributes: Mapping[str, Any]) -> bool:
        """Whether it applies to something with these attributes."""
        return all(
            _matches(name, self.fields[name], attributes.get(name))
            for name in (*MATCHES, "node", "worker", "role", "retry_test")
            if name in self.fields
        )


class Faults:
    """All faults, persisted in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: dict[str, str] = {}
        self._faults: dict[str, Fault] = {}  # by id, the oldest first
        for key, _ in store.items("fault"):
            fields = store.get_json("fault", key)
            assert fields is not None
            self._faults[fields["id"]] = Fault(fields)
            self._keys[fields["id"]] = key

    def add(self, spec: Any) -> Fault:
        """Create a fault from its JSON form; ApiError names the first invalid field."""
        fields = _validate(spec)
        number = self._store.next("fault")
        fault = Fault(
            {"id": f"{fields['kind']}-{number}", **fields, "matched": 0, "applied": 0, "error": ""}
        )
        self._faults[fault.id] = fault
        self._keys[fault.id] = f"{number:012d}"
        self._save(fault)
        return fault

    def all(self) -> list[Fault]:
        """In the order in which they were added, exhausted ones included."""
        return list(self._faults.values())

    def get(self, fault_id: str) -> Fault:
        fault = self._faults.get(fault_id)
        if fault is None:
            raise missing(
                f"Fault {fault_id!r} not found.{did_you_mean(fault_id, self._faults)}",
            )
        return fault

    def remove(self, fault_id: str) -> None:
        self.get(fault_id)
        del self._faults[fault_id]
        self._store.delete("fault", self._keys.pop(fault_id))

    def take(self, kind: str, **attributes: str) -> dict[str, Any] | None:
        """The fault of this kind that applies to these attributes, its use counted, or None.

        Services call it where the fault would happen, as `take("stockout", zone=zone, type=type)`
        when they look for capacity.
        """
        for fault in self.due((kind,), lambda: attributes):
            self.record_use(fault)
            return dict(fault.fields)
        return None

    def pending(self, kind: str) -> list[Fault]:
        """The faults of this kind that can still apply."""
        return [fault for fault in self.all() if fault.kind == kind and not fault.is_exhausted()]

    def due(
        self, kinds: Collection[str], get_attributes: Callable[[], Mapping[str, Any]]
    ) -> list[Fault]:
        """The faults of these kinds that apply now, oldest first. Call it once per request.

        The caller reports each fault it applies with `record_use`.
        """
        due_faults: list[Fault] = []
        attributes: Mapping[str, Any] | None = None
        for fault in self._faults.values():
            if fault.kind not in kinds or fault.is_exhausted():
                continue
            attributes = get_attributes() if attributes is None else attributes
            if not fault.matches(attributes):
                continue
            fault.fields["matched"] += 1
            self._save(fault)
            if fault.fields["matched"] >= (fault.get("at") or 1):
                due_faults.append(fault)
        return due_faults

    def can_strike(self, fault: Fault) -> bool:
        """Whether a due fault still applies: it was neither removed nor used up since."""
        times = fault.fields["times"]
        return fault.id in self._faults and (times == _UNLIMITED or fault.fields["applied"] < times)

    def update(self, fault: Fault, **fields: Any) -> None:
        """Store additional fields."""
        fault.fields.update(fields)
        self._save(fault)

    def record_use(self, fault: Fault, error: str = "") -> None:
        """Count a use, with the error it ended with, if any."""
        fault.fields["applied"] += 1
        fault.fields["error"] = error
        self._save(fault)

    def _save(self, fault: Fault) -> None:
        if fault.id in self._faults:
            self._store.put_json("fault", self._keys[fault.id], fault.fields)


def matches_method(pattern: str, method: str) -> bool:
    """Whether a method's full name, or its part after a `/` or `.`, matches the pattern.

    `mutating` matches all methods that change something; patterns are separated by commas.
    """
    for part in pattern.split(","):
        glob = part.strip()
        if glob == "mutating":
            if is_mutating(method):
                return True
        elif any(fnmatchcase(method, form) for form in (glob, f"*/{glob}", f"*.{glob}")):
            return True
    return False


def is_mutating(method: str) -> bool:
    """Whether a method changes something, by its verb."""
    return _READ_ONLY_VERBS.match(re.split(r"[/.]", method)[-1]) is None


def _matches(name: str, expected: Any, actual: Any) -> bool:
    if name == "worker":
        return bool(str(expected) == actual)
    if name == "method":
        return actual is not None and matches_method(expected, str(actual))
    values = [actual] if isinstance(actual, str) else list(actual or ())
    if name in ("name", "node") and "*" not in expected:
        return any(expected in value for value in values)
    return any(fnmatchcase(value, expected) for value in values)


def _validate(spec: Any) -> dict[str, Any]:
    if not isinstance(spec, dict):
        raise invalid("A fault must be an object with a kind.")
    options = {key: value for key, value in spec.items() if value is not None}
    kind = options.pop("kind", "")
    if kind not in KINDS:
        raise invalid(
            f"Unknown fault kind {kind!r}.{did_you_mean(str(kind), KINDS)} "
            f"Supported kinds: {', '.join(KINDS)}."
        )
    allowed = {name.rstrip("*") for name in KINDS[kind]}
    for name in options:
        if name not in allowed and name not in _COUNTS:
            if name in FIELDS:
                raise invalid(
                    f"A fault of kind {kind} does not support {name!r}. Supported: "
                    f"{', '.join([*sorted(allowed), *_COUNTS])}."
                )
            raise invalid(f"Unknown field {name!r}.{did_you_mean(name, allowed | set(_COUNTS))}")
    for name in KINDS[kind]:
        if name.endswith("*") and name[:-1] not in options:
            raise invalid(f"A fault of kind {kind} requires {name[:-1]!r}.")
    if isinstance(options.get("type"), str):
        options["type"] = catalog.type_pattern(options["type"])
    fields = {name: _validate_value(name, value) for name, value in options.items()}
    if kind in SCHEDULED and not {"times", "at"}.isdisjoint(fields):
        raise invalid(f"A fault of kind {kind} happens once: times and at are not supported.")
    if kind == "weather" and not {"times", "at"}.isdisjoint(fields):
        raise invalid("A fault of kind weather follows its trace: times and at are not supported.")
    if kind == "quota":
        fields.setdefault("method", _CREATIONS)
    if kind in _LASTING:
        fields = {"times": _UNLIMITED, **_LASTING[kind], **fields}
    return {"kind": kind, "times": 1, **fields}


def _validate_value(name: str, value: Any) -> Any:
    if name == "times" and value == _UNLIMITED:
        return value
    field_type = FIELDS[name].type
    if name == "times" or field_type is int:
        ranges = {"number": (0, 10**9), "http": (400, 599), "after_bytes": (0, 10**13)}
        ranges["worker"] = (0, 10**6)
        least, most = ranges.get(name, (1, 10**9))
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            or_else = " or unlimited" if name == "times" else ""
            raise invalid(
                f"{name} must be an integer from {least} to {most}{or_else}, not {value!r}."
            )
    elif field_type is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= 10**7:
            raise invalid(f"{name} must be a number of at least 0, not {value!r}.")
    elif field_type is bool:
        if not isinstance(value, bool):
            raise invalid(f"{name} must be true or false, not {value!r}.")
    elif not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT_LENGTH:
        raise invalid(f"{name} must be a non-empty string, not {value!r}.")
    elif name in _CHOICES and value not in _CHOICES[name]:
        raise invalid(f"{name} must be {' or '.join(_CHOICES[name])}, not {value!r}.")
    elif name in ("zone", "region", "type"):
        require_known(name, value)
    elif name == "code" and value not in CODES:
        raise invalid(f"Unknown code {value!r}.{did_you_mean(value.upper(), CODES)}")
    elif name == "google_error" and value not in MESSAGES:
        raise invalid(
            f"Unknown Google error {value!r}.{did_you_mean(value, MESSAGES)} "
            f"Supported errors: {', '.join(MESSAGES)}."
        )
    return value


def require_known(name: str, value: str, where: str = "") -> None:
    """Raise an error if there is no such zone, region, or type, which would never match."""
    if not _is_known(name, value):
        raise invalid(f"{where}Unknown {name} {value!r}.{_similar(name, value)}")


def _similar(name: str, value: str) -> str:
    """Like `did_you_mean`; a type is of the same generation."""
    if name == "type":
        return "".join(f" Did you mean {like}?" for like in catalog.nearest_types(value, 1))
    return did_you_mean(value, _KNOWN_VALUES[name]())


_KNOWN_VALUES: Mapping[str, Callable[[], Collection[str]]] = {
    "zone": zones,
    "region": regions,
    "type": catalog.accelerator_types,
}
_TPU_TYPE = re.compile(r"v\d")


def _is_known(name: str, value: str) -> bool:
    """Whether the zone, region or type exists; of types only those of TPUs are checked."""
    if name == "type" and not _TPU_TYPE.match(value) and not catalog.nearest_types(value):
        return True
    return any(fnmatchcase(candidate, value) for candidate in _KNOWN_VALUES[name]())
