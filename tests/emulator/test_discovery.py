"""Discovery documents: compared with Google's, and used by google-api-python-client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.oauth2.credentials import Credentials
from googleapiclient import discovery, errors, http

from tests.support.discovery_documents import document
from tests.support.locations import PARENT, PROJECT
from tpuctl.emulator.wire.discovery.documents import FOLDER

OFFERED = sorted(path.name.removesuffix(".json") for path in FOLDER.glob("*.json"))
# The default discovery URL of google-api-python-client; SkyPilot and Ray pass no version.
BY_API = "/discovery/v1/apis/{api}/{apiVersion}/rest"


def methods_of(part: Any) -> Iterator[Any]:
    yield from part.get("methods", {}).values()
    for inner in part.get("resources", {}).values():
        yield from methods_of(inner)


def form_of(parameter: Any) -> Any:
    keys = ("type", "location", "required", "repeated", "format", "pattern", "enum")
    return {key: parameter.get(key) for key in keys}


def get(cloud: Any, path: str, **headers: str) -> Any:
    """Without a token: Google serves these to anyone."""
    return cloud.request("GET", path, token="invalid", headers={"Authorization": "", **headers})


@pytest.mark.parametrize("name", OFFERED)
def test_documents_match_googles(cloud: Any, name: str) -> None:
    api, _, version = name.partition(".")
    answer = get(cloud, f"/discovery/v1/apis/{api}/{version}/rest")
    assert answer.status_code == 200
    served, original_document = answer.json(), document(name).text
    assert served["rootUrl"] == f"{cloud.url}/"
    assert served["baseUrl"] == f"{cloud.url}/{original_document['servicePath']}"
    for key in ("id", "name", "version", "servicePath", "batchPath", "protocol"):
        assert served[key] == original_document[key]
    methods_by_id = {method["id"]: method for method in methods_of(original_document)}
    offered = list(methods_of(served))
    assert offered
    for method in offered:
        original = methods_by_id[method["id"]]
        for key in ("path", "httpMethod", "parameterOrder", "request", "response", "mediaUpload"):
            assert method.get(key) == original.get(key), (method["id"], key)
        parameters = original.get("parameters", {})
        assert {key: form_of(value) for key, value in method.get("parameters", {}).items()} == {
            key: form_of(value) for key, value in parameters.items()
        }
    for schema, shape in served["schemas"].items():
        original = original_document["schemas"][schema]
        assert shape.get("properties", {}).keys() == original.get("properties", {}).keys(), schema
    assert set(references_in(served)) == served["schemas"].keys()


def references_in(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for inner in part.values():
            yield from references_in(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from references_in(inner)


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        ("tpu.googleapis.com", "/$discovery/rest?version=v2alpha1", "tpu:v2alpha1"),
        ("tpu.googleapis.com", "/$discovery/rest?version=v2alpha", "tpu:v2alpha"),
        ("tpu.googleapis.com", "/$discovery/rest", "tpu:v2"),
        ("tpu.googleapis.com", "/%24discovery/rest?version=v1", "tpu:v1"),
        ("storage.googleapis.com", "/$discovery/rest?version=v1", "storage:v1"),
        ("www.googleapis.com", "/discovery/v1/apis/compute/v1/rest", "compute:v1"),
    ],
)
def test_documents_by_host_have_expected_id(
    cloud: Any, host: str, path: str, expected: str
) -> None:
    answer = get(cloud, path, Host=host)
    assert answer.json()["id"] == expected
    api = expected.partition(":")[0]
    assert answer.json()["rootUrl"] == f"https://{api}.googleapis.com/"


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("tpu.googleapis.com", "/$discovery/rest?version=v9"),
        ("127.0.0.1", "/$discovery/rest?version=v1"),  # ambiguous: several APIs
        ("127.0.0.1", "/discovery/v1/apis/tpu/v9/rest"),
        ("127.0.0.1", "/discovery/v1/apis/..%2Ftpu/v2/rest"),
    ],
)
def test_unknown_documents_are_not_found(cloud: Any, host: str, path: str) -> None:
    answer = get(cloud, path, Host=host)
    assert answer.status_code == 404
    assert answer.json()["error"]["status"] == "NOT_FOUND"


def test_directory_lists_documents(cloud: Any) -> None:
    answer = get(cloud, "/discovery/v1/apis?name=tpu")
    items = {item["version"]: item for item in answer.json()["items"]}
    assert items.keys() == {"v1", "v1alpha1", "v2", "v2alpha", "v2alpha1"}
    assert [version for version, item in items.items() if item["preferred"]] == ["v2"]
    path = items["v2"]["discoveryRestUrl"].removeprefix(cloud.url)
    assert get(cloud, path).json()["id"] == "tpu:v2"


def build(cloud: Any, api: str, version: str, address: str = BY_API) -> Any:
    return discovery.build(
        api,
        version,
        credentials=Credentials(token=cloud.token),
        discoveryServiceUrl=cloud.url + address,
        cache_discovery=False,
    )


@pytest.mark.parametrize("version", ["v2alpha1", "v2alpha", "v2", "v1", "v1alpha1"])
def test_node_created_as_skypilot_and_ray_do(cloud: Any, version: str) -> None:
    body = {"acceleratorType": "v3-8"}
    if version.startswith("v1"):
        body["tensorflowVersion"] = "2.12.0"
    else:
        body["runtimeVersion"] = "tpu-ubuntu2204-base"

    with build(cloud, "tpu", version) as tpu:
        locations = tpu.projects().locations()
        operation = locations.nodes().create(parent=PARENT, nodeId="n", body=body).execute()
        while not operation["done"]:
            operation = locations.operations().get(name=operation["name"]).execute()
        listed = locations.nodes().list(parent=PARENT).execute()
        assert [node["name"] for node in listed["nodes"]] == [f"{PARENT}/nodes/n"]
        assert operation["response"]["name"] == f"{PARENT}/nodes/n"
        locations.nodes().delete(name=f"{PARENT}/nodes/n").execute()


def test_discovery_by_host_path(cloud: Any) -> None:
    with build(cloud, "tpu", "v2alpha1", "/$discovery/rest?version={apiVersion}") as tpu:
        assert tpu.projects().locations().nodes().list(parent=PARENT).execute() == {}


def test_discovery_clients_of_other_apis(cloud: Any) -> None:
    cloud.enable("serviceusage", "cloudresourcemanager")

    with build(cloud, "compute", "v1") as compute:
        zones = compute.zones().list(project=PROJECT, filter="name=europe-west4-a").execute()
        assert [zone["name"] for zone in zones["items"]] == ["europe-west4-a"]
    with build(cloud, "cloudresourcemanager", "v1") as projects:
        project = projects.projects().get(projectId=PROJECT).execute()
        assert project["lifecycleState"] == "ACTIVE"
    with build(cloud, "cloudresourcemanager", "v3") as projects:
        project = projects.projects().get(name=f"projects/{PROJECT}").execute()
        assert project["state"] == "ACTIVE"
    with build(cloud, "iam", "v1") as iam:
        accounts = iam.projects().serviceAccounts()
        request = accounts.create(name=f"projects/{PROJECT}", body={"accountId": "runner"})
        assert request.execute()["email"].startswith("runner@")
    with build(cloud, "serviceusage", "v1") as usage:
        name = f"projects/{PROJECT}/services/tpu.googleapis.com"
        assert usage.services().get(name=name).execute()["state"] == "ENABLED"
    with build(cloud, "cloudbilling", "v1") as billing:
        billing_info = billing.projects().getBillingInfo(name=f"projects/{PROJECT}").execute()
        assert billing_info["billingEnabled"] is True
    with build(cloud, "storage", "v1") as storage:
        storage.buckets().insert(project=PROJECT, body={"name": "a-bucket"}).execute()
        media = http.MediaInMemoryUpload(b"data\r", "text/plain")
        storage.objects().insert(bucket="a-bucket", name="o", media_body=media).execute()
        assert storage.objects().get_media(bucket="a-bucket", object="o").execute() == b"data\r"


def test_unknown_version_raises_client_error(cloud: Any) -> None:
    with pytest.raises(errors.UnknownApiNameOrVersion):
        build(cloud, "tpu", "v9")
