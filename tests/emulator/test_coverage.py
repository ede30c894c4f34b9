"""Checks the coverage page by calling each method."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tpuctl.emulator.wire.discovery.method_list import list_methods, method_name

DOCS = Path(__file__).resolve().parents[2] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.malformed
def test_coverage_page_matches_unimplemented_methods(cloud: Any) -> None:
    """The response is 501 with the method's name exactly for methods listed as unsupported."""
    coverage = generator()._coverage()

    def send_all(server: http.client.HTTPConnection) -> None:
        headers = {"Authorization": f"Bearer {cloud.token}", "Content-Length": "2"}
        for verb, path, name in list_methods():
            # Service Usage's paths begin with any kind of consumer; only projects are tested here.
            sample = re.sub(r"^(/v[^/]+)/\*/", r"\1/projects/", path).replace("*", "x1")
            server.request(verb, sample, b"{}", headers)
            answer = server.getresponse()
            text = answer.read().decode()
            api, _, method = name.partition(":")
            resource, _, last = method.partition(".")[2].rpartition(".")
            is_served = coverage[api][resource or "—"][last]
            is_refused = answer.status == 501 and "not implemented by the local cloud" in text
            if is_refused == is_served:
                wrong.append((name, verb, sample, is_served, text))

    wrong: list[Any] = []
    connection = http.client.HTTPConnection("127.0.0.1", cloud.server.port, timeout=60)
    with contextlib.closing(connection):
        send_all(connection)
    assert wrong == []


@pytest.mark.parametrize(
    ("verb", "path", "name"),
    [
        ("GET", "/v2/projects/p/locations/z/nodes/n", "tpu.projects.locations.nodes.get"),
        ("POST", "/v2/projects/p/locations/z/nodes/n:stop", "tpu.projects.locations.nodes.stop"),
        ("GET", "/compute/v1/projects/p/zones/z/instances/i", "compute.instances.get"),
        ("GET", "/v3/tagKeys/t", "cloudresourcemanager.tagKeys.get"),
        ("PUT", "/v2/projects/p/locations/z/nodes/n", None),
        ("GET", "/v2/projects/p/locations/z/sheep", None),
        ("GET", "/v9/nothing", None),
        ("GET", "/", None),
    ],
)
def test_paths_map_to_method_names(verb: str, path: str, name: str | None) -> None:
    assert method_name(verb, path) == name
