"""One of Google's APIs as the local cloud serves it: all that the core has to know of it.

Each folder of an API has an `api.py` with one such value, `API`, and is found by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.wire.rest_rules import Options

__all__ = ["GoogleApi", "Surface"]


@dataclass(frozen=True)
class Surface:
    """One gRPC service of one API, and where its official client keeps the tables of it."""

    service: str  # "google.cloud.tpu.v2.Tpu"
    package: str  # "google.cloud.tpu_v2.services.tpu"
    client: str  # "Tpu", as in TpuTransport
    key: str  # which of our services answers; "" for none
    paths: str = ""  # a pattern of the REST paths that may be its
    # The shape of its errors: "legacy" with a list of them, "both" with `alt=json` alone.
    family: str = "platform"
    api: str = ""  # must be enabled in the project that a request names
    messages: str = ""  # whose `extended` adds to the client's messages what it lacks
    includes_defaults: bool = False  # whether its JSON has what is false or empty
    # Whether operations say `done` and `cancelRequested` also while these are false, as those of
    # Cloud TPU do (SkyPilot reads `operation["done"]` of every answer); Resource Manager's do not:
    # a created project answers {"name": "operations/cp.N"}.
    has_explicit_operations: bool = False
    definition: str = ""  # whose `methods` has the table, where no client does
    # HTTP rules of its methods, where the client speaks gRPC only and so brings none.
    rest_rules: Options = field(default_factory=dict)


@dataclass(frozen=True)
class GoogleApi:
    """One API, in all of its versions. `api.py` imports nothing slow: names stand for modules."""

    access: ApiAccess  # permissions, refusals, scopes
    # Where its services live, by key, as "tpuctl.emulator.tpu.v2:TpuService".
    services: Mapping[str, str]
    # Google's discovery documents of its versions, and what pages call each. By them also those of
    # its methods that are not imitated are refused by their names.
    documents: Mapping[str, str]
    surfaces: Sequence[Surface] = ()
    # Those that every API's host serves beside its own.
    shared_surfaces: Sequence[Surface] = ()
    # The surface of a path, of an API with too many to list them.
    surface_at: Callable[[str], Surface | None] = lambda path: None
    # A pattern of paths whose errors have the older shape, whether there are such methods or not.
    legacy_paths: str = ""
    # What paths begin with that a service answers in JSON itself, and its key.
    json_services: Mapping[str, str] = field(default_factory=dict)
    # Paths that another version is called by: a pattern, and what stands for it here.
    aliases: Sequence[tuple[str, str]] = ()
    # Seconds per step at (quick, real), a step being an operation or its whole collection. The real
    # ones were seen where a source is named; the others are guesses and stand on the list of
    # things not tried against Google.
    paces: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # What stands in the store and has machines, by kind, and the key of its service.
    with_machines: Mapping[str, str] = field(default_factory=dict)
    # Full names of methods that are in no table: those of services that answer HTTP themselves.
    other_methods: Sequence[str] = ()
