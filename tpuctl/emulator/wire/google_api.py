"""The declaration of one of Google's APIs for the emulator's core.

Each API's folder has an `api.py` with such a value, `API`, by which it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.wire.rest_rules import Options


@dataclass(frozen=True)
class Surface:
    """One gRPC service of an API, and where its official client defines its methods."""

    service: str  # "google.cloud.tpu.v2.Tpu"
    package: str  # "google.cloud.tpu_v2.services.tpu"
    key: str  # of the emulator's service that answers; "" for none
    paths: str = ""  # a pattern of its REST paths
    # The format of its errors: "legacy" with a list, "both" for the list only with `alt=json`.
    family: str = "platform"
    api: str = ""  # must be enabled in the request's project
    messages: str = ""  # the module whose `extended` adds missing fields to the client's messages
    includes_defaults: bool = False  # whether its JSON includes false and empty values
    # Whether operations include `done` and `cancelRequested` also while these are false, as those
    # of Cloud TPU do (SkyPilot reads `operation["done"]` of every response); Resource Manager's do
    # not: a created project answers {"name": "operations/cp.N"}.
    has_explicit_operations: bool = False
    definition: str = ""  # the module whose `methods` defines it, if no client does
    # HTTP rules of its methods, if the client supports only gRPC.
    rest_rules: Options = field(default_factory=dict)
    # Fields of requests that are not emulated, in all of its methods: the proto's names.
    refused: Sequence[str] = ()

    @property
    def client(self) -> str:
        """`Tpu`, as in TpuTransport."""
        return self.service.rpartition(".")[2]


@dataclass(frozen=True)
class GoogleApi:
    """One API, in all of its versions. `api.py` imports nothing slow: names stand for modules."""

    access: ApiAccess  # permissions, refusals, scopes
    # Its service classes, by key, as "tpuctl.emulator.tpu.v2:TpuService".
    services: Mapping[str, str]
    # Google's discovery documents of its versions, and their names in the documentation. They also
    # name its unsupported methods in errors.
    documents: Mapping[str, str]
    surfaces: Sequence[Surface] = ()
    # Those that every API's host serves in addition to its own.
    shared_surfaces: Sequence[Surface] = ()
    # The surface of a path, for an API with too many to list them.
    surface_at: Callable[[str], Surface | None] = lambda path: None
    # A pattern of paths whose errors have the legacy format, even of unknown methods.
    legacy_paths: str = ""
    # Path prefixes that a service answers in JSON itself, and its key.
    json_services: Mapping[str, str] = field(default_factory=dict)
    # Paths of other versions: a pattern, and its replacement.
    aliases: Sequence[tuple[str, str]] = ()
    # Seconds per step at (quick, real), a step being an operation or its whole collection. Real
    # ones with a source were measured; the others are guesses, on the list of things not tried
    # against Google.
    paces: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Kinds in the store that have machines, and the keys of their services.
    with_machines: Mapping[str, str] = field(default_factory=dict)
    # Full names of methods that are in no table: of services that answer HTTP themselves.
    other_methods: Sequence[str] = ()
