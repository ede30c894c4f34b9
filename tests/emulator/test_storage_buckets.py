"""Buckets and their policies through the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import storage


def test_bucket_lifecycle(cloud: Any) -> None:
    client = cloud.storage()
    bucket = storage.Bucket(client, "stack-bucket")
    bucket.labels = {"tpuctl-stack": "one"}
    bucket.iam_configuration.uniform_bucket_level_access_enabled = True
    bucket.iam_configuration.public_access_prevention = "enforced"
    bucket.soft_delete_policy.retention_duration_seconds = 0
    bucket.add_lifecycle_delete_rule(age=3)
    bucket.create(location="europe-west4")
    loaded = client.get_bucket("stack-bucket")
    assert loaded.location == "EUROPE-WEST4"
    assert loaded.location_type == "region"
    assert loaded.labels == {"tpuctl-stack": "one"}
    assert loaded.iam_configuration.uniform_bucket_level_access_enabled
    assert loaded.iam_configuration.public_access_prevention == "enforced"
    assert loaded.soft_delete_policy.retention_duration_seconds == 0
    assert [rule["action"]["type"] for rule in loaded.lifecycle_rules] == ["Delete"]
    assert loaded.project_number > 0
    assert loaded.metageneration == 1
    loaded.labels = {"tpuctl-stack": "two"}
    loaded.patch()
    again = client.get_bucket("stack-bucket")
    assert (again.labels, again.metageneration) == ({"tpuctl-stack": "two"}, 2)
    assert [bucket.name for bucket in client.list_buckets()] == ["stack-bucket"]
    assert [bucket.name for bucket in client.list_buckets(prefix="x")] == []
    again.delete()
    assert client.lookup_bucket("stack-bucket") is None
    with pytest.raises(exceptions.NotFound) as caught:
        client.get_bucket("stack-bucket")
    assert "The specified bucket does not exist." in caught.value.message


def test_bucket_names_are_global(cloud: Any) -> None:
    cloud.in_loop(cloud.server.registry.projects.add, "other-project", billing=True)

    cloud.storage().create_bucket("taken")
    with pytest.raises(exceptions.Conflict) as caught:
        cloud.storage().create_bucket("taken")
    assert "you already own it" in caught.value.message
    with pytest.raises(exceptions.Conflict) as caught:
        cloud.storage("other-project").create_bucket("taken")
    assert "The requested bucket name is not available" in caught.value.message


@pytest.mark.parametrize(
    ("resource", "query", "status"),
    [
        ({"name": "ab"}, {}, 400),
        ({"name": "Upper"}, {}, 400),
        ({"name": "1.2.3.4"}, {}, 400),
        ({"name": "goog-mine"}, {}, 400),
        ({"name": "x" * 64}, {}, 400),
        ({"name": 7}, {}, 400),
        ({}, {}, 400),
        ({"name": "fine", "location": "MOON"}, {}, 400),
        ({"name": "fine", "storageClass": "FANCY"}, {}, 400),
        ({"name": "fine", "labels": {"Bad Key": "x"}}, {}, 400),
        ({"name": "fine", "labels": 3}, {}, 400),
        ({"name": "fine", "iamConfiguration": 3}, {}, 400),
        ({"name": "fine"}, {"project": "nobodys-project"}, 400),
        ({"name": "fine"}, {"project": "unpaid-project"}, 403),
        ({"name": "fine.example.org"}, {}, 200),
    ],
)
async def test_bucket_settings(
    cloud: Any, resource: dict[str, Any], query: dict[str, str], status: int
) -> None:
    cloud.server.registry.projects.add("unpaid-project")
    params = {"project": "local-project", **query}
    answer = await asyncio.to_thread(
        cloud.request, "POST", "/storage/v1/b", params=params, json=resource
    )
    assert answer.status_code == status, answer.text
    assert cloud.server.report()["buckets"] == (1 if status == 200 else 0)


def test_policies_are_read_modify_write(cloud: Any) -> None:
    bucket = cloud.storage().create_bucket("granted")
    policy = bucket.get_iam_policy(requested_policy_version=3)
    owners = {"projectEditor:local-project", "projectOwner:local-project"}
    assert set(policy["roles/storage.legacyBucketOwner"]) == owners
    policy.bindings.append(
        {"role": "roles/storage.objectAdmin", "members": {"serviceAccount:a@b.example"}}
    )
    bucket.set_iam_policy(policy)
    again = bucket.get_iam_policy(requested_policy_version=3)
    assert again["roles/storage.objectAdmin"] == {"serviceAccount:a@b.example"}
    assert again.etag != policy.etag
    # The first policy that was read is outdated.
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.set_iam_policy(policy, retry=None)
    assert bucket.test_iam_permissions(["storage.objects.get"]) == ["storage.objects.get"]


@pytest.mark.parametrize(
    "bindings",
    [
        [{"role": "objectAdmin", "members": ["user:a@b.example"]}],
        [{"role": "roles/storage.objectAdmin", "members": ["a@b.example"]}],
        [{"role": "roles/storage.objectAdmin", "members": "user:a@b.example"}],
        [7],
        {"role": "x"},
    ],
)
def test_invalid_policies_are_rejected(cloud: Any, bindings: Any) -> None:
    cloud.request("POST", "/storage/v1/b?project=local-project", json={"name": "granted"})
    path = "/storage/v1/b/granted/iam"
    assert cloud.request("PUT", path, json={"bindings": bindings}).status_code == 400


def test_bucket_requests_of_gcloud(cloud: Any) -> None:
    cloud.storage().create_bucket("asked", location="EU")
    layout = cloud.request("GET", "/storage/v1/b/asked/storageLayout").json()
    assert (layout["location"], layout["locationType"]) == ("EU", "multi-region")
    assert cloud.request("GET", "/storage/v1/b/asked/managedFolders").status_code == 200
    account = cloud.request("GET", "/storage/v1/projects/local-project/serviceAccount").json()
    assert account["email_address"].endswith("@gs-project-accounts.iam.gserviceaccount.com")


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("POST", "/storage/v1/b?project=local-project", b"{"),
        ("POST", "/storage/v1/b?project=local-project", b"[]"),
        ("PATCH", "/storage/v1/b/there", b"nonsense"),
        ("PATCH", "/storage/v1/b/there", b'{"labels": [1]}'),
        ("PATCH", "/storage/v1/b/there", b'{"iamConfiguration": {"publicAccessPrevention": 1}}'),
        ("PATCH", "/storage/v1/b/there", b'{"softDeletePolicy": null, "location": "US-EAST1"}'),
        ("PUT", "/storage/v1/b/there/iam", b"[]"),
        ("GET", "/storage/v1/b/there/o?maxResults=many", b""),
        ("GET", "/storage/v1/b/there/o?pageToken=!!", b""),
        ("POST", "/storage/v1/b/there/o/x/compose", b'{"sourceObjects": 1}'),
        ("POST", "/storage/v1/b/there/o/x/compose", b'{"sourceObjects": [1]}'),
        ("POST", "/storage/v1/b/there/o/x/compose", b"{}"),
        ("POST", "/upload/storage/v1/b/there/o?uploadType=strange&name=x", b""),
        ("POST", "/upload/storage/v1/b/there/o?uploadType=resumable", b"{}"),
        ("POST", "/batch/storage/v1", b"x"),
    ],
)
def test_malformed_requests_are_rejected(cloud: Any, verb: str, path: str, body: bytes) -> None:
    cloud.request("POST", "/storage/v1/b?project=local-project", json={"name": "there"})
    answer = cloud.request(verb, path, data=body)
    assert answer.status_code == 400, answer.text


@pytest.mark.malformed
@pytest.mark.parametrize(
    "field",
    [
        {"website": 5},
        {"website": {"mainPageSuffix": ["x"]}},
        {"cors": [{"maxAgeSeconds": "many"}]},
        {"cors": [None]},
        {"lifecycle": {"rule": [{"condition": {"age": 2**31}}]}},
        {"lifecycle": {"rule": {}}},
        {"versioning": {"enabled": "yes"}},
        {"labels": {"a": 1}},
    ],
    ids=str,
)
def test_settings_of_wrong_type_are_rejected(cloud: Any, field: dict[str, Any]) -> None:
    path = "/storage/v1/b/typed"
    cloud.request("POST", "/storage/v1/b?project=local-project", json={"name": "typed"})
    before = cloud.request("GET", path).json()
    assert cloud.request("PATCH", path, json=field).status_code == 400
    assert cloud.request("GET", path).json() == before
    assert cloud.request("PATCH", path, json={"no-such-field": 1}).status_code == 200
    assert "no-such-field" not in cloud.request("GET", path).json()


@pytest.mark.parametrize("token", ["", "of-no-account", "x" * 100])
def test_invalid_token_is_refused_in_the_words_of_storage(cloud: Any, token: str) -> None:
    """As gcsfs expects it (gcsfs/tests/test_credentials.py)."""
    headers = {"Authorization": f"Bearer {token}"}
    answer = cloud.request("GET", "/storage/v1/b?project=local-project", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["errors"] == [
        {
            "message": "Invalid Credentials",
            "domain": "global",
            "reason": "authError",
            "locationType": "header",
            "location": "Authorization",
        }
    ]
