"""Google's discovery documents, and lookup of methods by HTTP request."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

# Documents of the served APIs, and the packages of their gRPC messages.
DOCUMENTS: Mapping[str, str] = {
    "tpu.v2": "google.cloud.tpu.v2",
    "tpu.v1": "google.cloud.tpu.v1",
    "tpu.v1alpha1": "google.cloud.tpu.v1alpha1",
    "tpu.v2alpha1": "google.cloud.tpu.v2alpha1",
    "cloudresourcemanager.v3": "google.cloud.resourcemanager.v3",
    "cloudresourcemanager.v2": "google.cloud.resourcemanager.v2",
    "cloudresourcemanager.v1": "google.cloudresourcemanager.v1",
    "serviceusage.v1": "google.api.serviceusage.v1",
    "serviceusage.v1beta1": "google.api.serviceusage.v1beta1",
    "iam.v1": "google.iam.admin.v1",
    "iamcredentials.v1": "google.iam.credentials.v1",
    "cloudbilling.v1": "google.cloud.billing.v1",
    "oslogin.v1": "google.cloud.oslogin.v1",
    "cloudkms.v1": "google.cloud.kms.v1",
    "orgpolicy.v2": "google.cloud.orgpolicy.v2",
    "secretmanager.v1": "google.cloud.secretmanager.v1",
    "storage.v1": "google.storage.v1",
    "compute.v1": "google.cloud.compute.v1",
}
# gcloud's alpha and beta tracks of Compute Engine.
_TRACKS = {"compute/beta/": "compute.beta", "compute/alpha/": "compute.alpha"}
# Also served at the root path: gcloud's endpoint overrides include no service path.
_ROOTLESS = ("compute/v1/", "storage/v1/")
# Versions without a document, and the versions they are aliases of.
_ALIASES = {"v2alpha/": "v2alpha1/"}
_ANY = -1  # any number of slashes
_VARIABLE = re.compile(r"\{(\+?)(\w+)\}")


@dataclass(frozen=True)
class Described:
    """A method of a document."""

    document: Document
    id: str  # "tpu.projects.locations.nodes.create"
    verb: str
    path: str  # "v2/{+parent}/nodes", relative to the root
    text: Mapping[str, Any] = field(repr=False)
    is_upload: bool = False

    @property
    def request(self) -> str | None:
        """The name of the body's schema, or None."""
        name: str | None = self.text.get("request", {}).get("$ref")
        return name

    @property
    def response(self) -> str | None:
        name: str | None = self.text.get("response", {}).get("$ref")
        return name

    @property
    def parameters(self) -> Mapping[str, Any]:
        parameters: Mapping[str, Any] = self.text.get("parameters", {})
        return parameters

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The regular expression of its paths, with a group per variable."""
        text, position = "", 0
        for match in _VARIABLE.finditer(self.path):
            text += re.escape(self.path[position : match.start()])
            text += f"(?P<{match[2]}>{self._shape(match)})"
            position = match.end()
        return re.compile(text + re.escape(self.path[position:]))

    def _shape(self, variable: re.Match[str]) -> str:
        if not variable[1]:
            return "[^/]+" if self.document.is_legacy else "[^/:]+"
        pattern = str(self.parameters[variable[2]].get("pattern", ".+"))
        pattern = pattern.removeprefix("^").removesuffix("$")
        # A colon starts a custom verb such as `:stop`.
        return re.sub(r"\[\^/\]\+$", "[^/:]+", pattern)

    @property
    def precision(self) -> int:
        """The number of literal characters in the path: more specific paths win."""
        return len(_VARIABLE.sub("", self.path))


class Document:
    """A version of an API."""

    def __init__(self, name: str, text: Mapping[str, Any]) -> None:
        self.name = name
        self.package = DOCUMENTS.get(name, "")
        self.text = text
        self.schemas: Mapping[str, Any] = text["schemas"]
        self.parameters: Mapping[str, Any] = text.get("parameters", {})
        # Compute Engine and Cloud Storage: older than Google's API platform.
        self.is_legacy = bool(text["servicePath"])
        self.methods = sorted(self._walk(text), key=lambda method: -method.precision)

    def _walk(self, part: Mapping[str, Any]) -> Iterator[Described]:
        for method in part.get("methods", {}).values():
            path = self.text["servicePath"] + method["path"]
            verb, name = method["httpMethod"], method["id"]
            yield Described(self, name, verb, path, method)
            protocols = method.get("mediaUpload", {}).get("protocols", {})
            for protocol in protocols.values():
                upload = protocol["path"].removeprefix("/")
                yield Described(self, name, verb, upload, method, is_upload=True)
            if method.get("useMediaDownloadService"):
                yield Described(self, name, verb, f"download/{path}", method)
        for inner in part.get("resources", {}).values():
            yield from self._walk(inner)

    def find(self, verb: str, path: str) -> tuple[Described, dict[str, str]] | None:
        """The method of a request and its path variables; `path` is still encoded."""
        for count in (path.count("/"), _ANY):
            for method in self._likely.get((verb, count), ()):
                if match := method.pattern.fullmatch(path):
                    return method, {key: unquote(text) for key, text in match.groupdict().items()}
        return None

    @cached_property
    def _likely(self) -> Mapping[tuple[str, int], list[Described]]:
        """Methods by verb and number of slashes, if no variable can contain slashes."""
        by_shape: dict[tuple[str, int], list[Described]] = {}
        for method in self.methods:
            count = _ANY if "{+" in method.path else method.path.count("/")
            by_shape.setdefault((method.verb, count), []).append(method)
        return by_shape


@cache
def document(name: str) -> Document:
    """A document by API and version, such as `tpu.v2`; FileNotFoundError if unknown."""
    # Located without importing, which would take longer than reading the document.
    package = importlib.util.find_spec("googleapiclient")
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parent / "discovery_cache" / "documents"
    return Document(name, json.loads((folder / f"{name}.json").read_text("utf-8")))


def find(verb: str, path: str) -> list[tuple[Described, dict[str, str]]]:
    """All matching methods: several if APIs share an origin and a path."""
    path = path.removeprefix("/")
    for alias, version in _ALIASES.items():
        if path.startswith(alias):
            path = version + path.removeprefix(alias)
    matches = []
    for name in _names(path):
        api_document = document(name)
        for prefix in ("", *(_ROOTLESS if api_document.is_legacy else ())):
            if (match := api_document.find(verb, prefix + path)) is not None:
                matches.append(match)
                break
    return matches


def _names(path: str) -> Iterator[str]:
    """Names of documents to search; Compute Engine's large one only if needed."""
    first = path.partition("/")[0]
    if first in ("compute", "projects"):
        tracks = (name for prefix, name in _TRACKS.items() if path.startswith(prefix))
        yield next(tracks, "compute.v1")
    if first in ("storage", "b", "upload", "resumable", "download", "projects"):
        yield "storage.v1"
    if re.fullmatch(r"v\d+(?:(?:alpha|beta)\d+)?", first):
        for name in DOCUMENTS:
            if name.endswith(f".{first}") and not name.startswith(("compute.", "storage.")):
                yield name
