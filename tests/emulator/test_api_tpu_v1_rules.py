"""HTTP rules that no Python client has, checked against client methods and gcloud's paths."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path

import pytest

from tests.support.wire_validation import REST_RULES
from tpuctl.emulator.wire.messages import camel, compile_path

CLIENTS = {
    "google.cloud.tpu.v1.Tpu": ("google.cloud.tpu_v1.services.tpu", "Tpu"),
    "google.cloud.tpu.v2alpha1.Tpu": ("google.cloud.tpu_v2alpha1.services.tpu", "Tpu"),
    "google.iam.admin.v1.IAM": ("google.cloud.iam_admin_v1.services.iam", "IAM"),
}
# Client methods without HTTP rules here: keys and signing are not emulated.
WITHOUT = re.compile(r"able_service_account_key$|^sign_|^lint_policy$|^query_auditable_services$")
GCLOUD = {
    "google.cloud.tpu.v1.Tpu": "tpu/v1/tpu_v1_client.py",
    "google.cloud.tpu.v2alpha1.Tpu": "tpu/v2alpha1/tpu_v2alpha1_client.py",
    "google.iam.admin.v1.IAM": "iam/v1/iam_v1_client.py",
}
PLACE = {
    "tpu": {
        "nodes": "projects/p/locations/z/nodes/n",
        "queuedResources": "projects/p/locations/z/queuedResources/q",
        "operations": "projects/p/locations/z/operations/o",
        "acceleratorTypes": "projects/p/locations/z/acceleratorTypes/t",
        "runtimeVersions": "projects/p/locations/z/runtimeVersions/r",
        "tensorflowVersions": "projects/p/locations/z/tensorflowVersions/v",
        "reservations": "projects/p/locations/z/reservations/r",
        "locations": "projects/p/locations/z",
    },
    "iam": {
        "roles": "projects/p/roles/r",
        "serviceAccounts": "projects/p/serviceAccounts/a@p.iam.gserviceaccount.com",
    },
}


# Of Google's description and gcloud, but not of the Python client yet.
NEWER = {"disable_service_account_key", "enable_service_account_key"}


@pytest.mark.parametrize("service", REST_RULES)
def test_every_client_method_has_http_rule(service: str) -> None:
    package, name = CLIENTS[service]
    base = getattr(importlib.import_module(f"{package}.transports.base"), f"{name}Transport")
    methods = {
        attribute
        for attribute, member in vars(base).items()
        if isinstance(member, property) and not attribute.startswith("_")
    } - {"operations_client", "host", "kind"}
    expected = {method for method in methods if not WITHOUT.search(method)}
    assert set(REST_RULES[service]) - NEWER == expected


def gcloud_methods(file: str) -> list[tuple[str, str, str]]:
    """ID, verb and path template of each method in gcloud's generated client."""
    program = shutil.which("gcloud")
    if program is None:
        pytest.skip("gcloud is not installed")
    root = Path(program).resolve().parents[1] / "lib/googlecloudsdk/generated_clients/apis"
    if not (root / file).exists():
        pytest.skip("this gcloud keeps its generated clients in another folder")
    methods = re.findall(
        r"http_method='(\w+)',\s+method_id='([\w.]+)',.*?relative_path='(.*?)'",
        (root / file).read_text("utf-8"),
        re.DOTALL,
    )
    return [(method, verb, path) for verb, method, path in methods]


@pytest.mark.parametrize("service", REST_RULES)
def test_gcloud_paths_match_same_methods(service: str) -> None:
    checked = set()
    for method_id, verb, template in gcloud_methods(GCLOUD[service]):
        api, *_, collection, action = method_id.split(".")
        resources = PLACE[api]
        if collection not in resources or "keys" in method_id or "organizations" in method_id:
            continue
        path = "/" + filled(template, method_id, resources[collection])
        matching = [
            method
            for method, options in REST_RULES[service].items()
            for option in options
            if option["method"].upper() == verb and compile_path(option["uri"])[0].fullmatch(path)
        ]
        if action in ("signBlob", "signJwt") or "identityBindings" in method_id:
            assert not matching
            continue
        assert len(matching) == 1, (method_id, path, matching)
        assert is_named_alike(matching[0], action), (method_id, matching)
        checked.add(method_id)
    assert len(checked) >= 15


def filled(template: str, method_id: str, resource: str) -> str:
    """The path of a method on a resource, or on its parent."""
    if method_id == "iam.roles.get":
        resource = "roles/r"
    parent = resource.rpartition("/")[0].rpartition("/")[0]
    needs_parent = re.search(r"\{\+(\w+)\}/\w+$", template) or template.endswith(
        ":generateServiceIdentity"
    )
    if method_id.endswith("locations.generateServiceIdentity"):
        parent = resource
    return re.sub(r"\{\+\w+\}", parent if needs_parent else resource, template)


def is_named_alike(method: str, action: str) -> bool:
    """Whether names match, such as `create_node` and `create`, or `update_node` and `patch`."""
    camel_name = camel(method).lower()
    return camel_name.startswith(action.lower()) or (
        action == "patch" and camel_name.startswith("update")
    )
