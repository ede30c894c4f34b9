"""gcloud storage: creating, copying, listing and granting access on the local cloud."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.gcloud import Gcloud
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

_numbers = itertools.count(1)
MEMBER = "user:someone@example.com"
# Thresholds of composite uploads and sliced downloads, lowered to a few megabytes. gcloud never
# deletes parts that fit into one request (8 MiB).
LARGE_FILE_THRESHOLD = "10M"
PARTS = {
    "CLOUDSDK_STORAGE_PARALLEL_COMPOSITE_UPLOAD_ENABLED": "True",
    "CLOUDSDK_STORAGE_PARALLEL_COMPOSITE_UPLOAD_THRESHOLD": LARGE_FILE_THRESHOLD,
    "CLOUDSDK_STORAGE_PARALLEL_COMPOSITE_UPLOAD_COMPONENT_SIZE": LARGE_FILE_THRESHOLD,
    "CLOUDSDK_STORAGE_SLICED_OBJECT_DOWNLOAD_THRESHOLD": LARGE_FILE_THRESHOLD,
    "CLOUDSDK_STORAGE_SLICED_OBJECT_DOWNLOAD_COMPONENT_SIZE": LARGE_FILE_THRESHOLD,
}


@pytest.fixture
def bucket() -> str:
    """A unique name."""
    return f"gcloud-{os.getpid()}-{next(_numbers)}"


def get_resource(gcloud: Gcloud, path: str) -> Any:
    """The JSON API's response to a GET request."""
    with requests.Session() as session:
        session.trust_env = False
        headers = {"Authorization": f"Bearer {gcloud.cloud.token}"}
        answer = session.get(f"{gcloud.cloud.url}/storage/v1/{path}", headers=headers, timeout=60)
        assert answer.ok, answer.text
        return answer.json()


def make(gcloud: Gcloud, bucket: str, **settings: Any) -> None:
    """A bucket created without gcloud."""
    with requests.Session() as session:
        session.trust_env = False
        answer = session.post(
            f"{gcloud.cloud.url}/storage/v1/b?project={gcloud.project}",
            json={"name": bucket, "location": "europe-west4", **settings},
            headers={"Authorization": f"Bearer {gcloud.cloud.token}"},
            timeout=60,
        )
        assert answer.ok, answer.text


def write(gcloud: Gcloud, name: str, data: bytes | str) -> Path:
    path = gcloud.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def last_call(cloud: LocalCloud) -> int:
    """The number of the last call, to count later ones."""
    return max((int(call["number"]) for call in remote_control.calls(cloud)), default=0)


def count(gcloud: Gcloud, method: str, since: int) -> int:
    calls = remote_control.calls(gcloud.cloud, since)
    return sum(call["method"] == f"storage.{method}" for call in calls)


@pytest.mark.soak
def test_files_of_all_sizes(gcloud: Gcloud, bucket: str) -> None:
    """Small ones in one request, larger ones resumable, the largest as composite uploads."""
    gcloud.run(
        "storage", "buckets", "create", f"gs://{bucket}", "--location=europe-west4",
        "--uniform-bucket-level-access",
    )  # fmt: skip
    resource = get_resource(gcloud, f"b/{bucket}")
    assert resource["location"] == "EUROPE-WEST4"
    assert resource["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]

    source = random.Random(7)
    small = write(gcloud, "files/small", "hello")
    resumable = write(gcloud, "files/resumable", source.randbytes(9 << 20))
    gcloud.run("storage", "cp", str(small), str(resumable), f"gs://{bucket}/files/")

    composite = write(gcloud, "composite", source.randbytes(30_000_000))
    since = last_call(gcloud.cloud)
    gcloud.run("storage", "cp", str(composite), f"gs://{bucket}/files/composite", **PARTS)
    assert count(gcloud, "objects.compose", since) == 1
    items = get_resource(gcloud, f"b/{bucket}/o")["items"]  # the parts were deleted
    assert {item["name"]: item.get("componentCount", 1) for item in items} == {
        "files/composite": 3,
        "files/resumable": 1,
        "files/small": 1,
    }

    since = last_call(gcloud.cloud)
    back = gcloud.folder / "back"
    back.mkdir()
    gcloud.run("storage", "cp", "-r", f"gs://{bucket}/files", str(back), **PARTS)
    assert count(gcloud, "objects.get", since) >= 2 + 3 + 1, "the download was not sliced"
    for path in (small, resumable, composite):
        assert (back / "files" / path.name).read_bytes() == path.read_bytes()

    gcloud.run("storage", "rm", "-r", f"gs://{bucket}")
    assert bucket not in str(get_resource(gcloud, f"b?project={gcloud.project}"))


def test_grants_on_buckets(gcloud: Gcloud, bucket: str) -> None:
    make(gcloud, bucket, iamConfiguration={"uniformBucketLevelAccess": {"enabled": True}})
    of = f"gs://{bucket}"
    grant = (f"--member={MEMBER}", "--role=roles/storage.objectViewer")
    condition = "title=own,expression=resource.name.startsWith('projects/_/buckets/b/objects/a')"
    policies = ("storage", "buckets")
    gcloud.run(*policies, "add-iam-policy-binding", of, *grant, f"--condition={condition}")
    policy = gcloud.json(*policies, "get-iam-policy", of)
    [binding] = [each for each in policy["bindings"] if each["members"] == [MEMBER]]
    assert binding["condition"]["title"] == "own"
    gcloud.run(*policies, "remove-iam-policy-binding", of, *grant, "--all")
    assert MEMBER not in str(get_resource(gcloud, f"b/{bucket}/iam"))


@pytest.mark.soak
def test_rsync_folders(gcloud: Gcloud, bucket: str) -> None:
    make(gcloud, bucket)
    for name in ("tree/a", "tree/sub/b", "tree/sub/c"):
        write(gcloud, name, name)
    rsync = ("storage", "rsync", "-r", "--delete-unmatched-destination-objects")
    gcloud.run(*rsync, "tree", f"gs://{bucket}/tree")
    write(gcloud, "tree/a", "another")
    (gcloud.folder / "tree/sub/b").unlink()
    since = last_call(gcloud.cloud)
    gcloud.run(*rsync, "tree", f"gs://{bucket}/tree")
    assert count(gcloud, "objects.insert", since) == 1, "only what changed is copied"
    listed = gcloud.run("storage", "ls", "-r", f"gs://{bucket}/**").stdout.split()
    assert listed == [f"gs://{bucket}/tree/a", f"gs://{bucket}/tree/sub/c"]


@pytest.mark.soak
def test_bucket_commands(gcloud: Gcloud, bucket: str) -> None:
    buckets, of = ("storage", "buckets"), f"gs://{bucket}"
    gcloud.run(*buckets, "create", of, "--location=us-central1", "--soft-delete-duration=10d")
    assert [each["name"] for each in gcloud.json(*buckets, "list")] == [bucket]
    description = gcloud.json(*buckets, "describe", of)
    assert description["location"] == "US-CENTRAL1"
    assert description["soft_delete_policy"]["retentionDurationSeconds"] == str(10 * 24 * 3600)
    gcloud.run(
        *buckets, "update", of, "--versioning", "--update-labels=a=b", "--soft-delete-duration=0",
        "--retention-period=1h", "--public-access-prevention", "--uniform-bucket-level-access",
    )  # fmt: skip
    description = gcloud.json(*buckets, "describe", of)
    assert description["versioning_enabled"] is True
    assert description["labels"] == {"a": "b"}
    assert description["retention_policy"]["retentionPeriod"] == "3600"
    assert description["public_access_prevention"] == "enforced"
    gcloud.run(*buckets, "update", of, "--clear-retention-period", "--clear-labels")
    assert "labels" not in gcloud.json(*buckets, "describe", of)
    policy = gcloud.json(*buckets, "get-iam-policy", of)
    policy["bindings"].append({"role": "roles/storage.objectViewer", "members": [MEMBER]})
    path = write(gcloud, "policy.json", json.dumps(policy))
    gcloud.run(*buckets, "set-iam-policy", of, str(path))
    assert MEMBER in gcloud.run(*buckets, "get-iam-policy", of).stdout
    again = gcloud.run(*buckets, "set-iam-policy", of, str(path), check=False)
    assert again.returncode == 1
    assert "did not hold" in again.stderr, "the etag is outdated"
    result = gcloud.run(*buckets, "create", of, check=False)
    assert "HTTPError 409" in result.stderr
    gcloud.run(*buckets, "delete", of)
    assert gcloud.run(*buckets, "describe", of, check=False).returncode == 1


@pytest.mark.soak
def test_object_commands(gcloud: Gcloud, bucket: str) -> None:
    make(gcloud, bucket)
    root = f"gs://{bucket}"
    small = write(gcloud, "한글 name", "hello")
    gcloud.run("storage", "cp", str(small), f"{root}/한글 name")
    assert gcloud.run("storage", "cat", f"{root}/한글 name").stdout == "hello"
    of = ("--custom-metadata=a=b", "--content-type=text/plain", "--cache-control=no-store")
    gcloud.run("storage", "objects", "update", f"{root}/한글 name", *of)
    stored = gcloud.json("storage", "objects", "describe", f"{root}/한글 name")
    assert (stored["custom_fields"], stored["content_type"]) == ({"a": "b"}, "text/plain")
    assert stored["md5_hash"] == "XUFAKrxLKna5cZ2REBfFkg=="
    gcloud.run("storage", "mv", f"{root}/한글 name", f"{root}/dir/moved")
    gcloud.run("storage", "cp", "-r", f"{root}/dir", f"{root}/copies")
    listed = gcloud.run("storage", "ls", "-r", f"{root}/**").stdout.split()
    assert listed == [f"{root}/copies/moved", f"{root}/dir/moved"]
    assert gcloud.run("storage", "du", "-s", root).stdout.split() == ["10", root]
    hashed = gcloud.json("storage", "hash", f"{root}/dir/moved")
    assert "XUFAKrxLKna5cZ2REBfFkg==" in str(hashed)
    gcloud.run(
        "storage", "objects", "compose", f"{root}/dir/moved", f"{root}/dir/moved", f"{root}/twice"
    )
    assert gcloud.run("storage", "cat", f"{root}/twice").stdout == "hellohello"
    gcloud.run("storage", "cp", "-J", str(small), f"{root}/in-flight")
    assert get_resource(gcloud, f"b/{bucket}/o/in-flight")["size"] == "5"
    gcloud.run("storage", "cp", "-Z", str(small), f"{root}/stored")
    assert get_resource(gcloud, f"b/{bucket}/o/stored")["contentEncoding"] == "gzip"
    gcloud.run("storage", "cp", f"{root}/stored", str(gcloud.folder / "expanded"))
    assert (gcloud.folder / "expanded").read_text() == "hello"
    gcloud.run("storage", "rm", f"{root}/twice")
    result = gcloud.run("storage", "cat", f"{root}/twice", check=False)
    assert "matched no objects" in result.stderr


@pytest.mark.soak
def test_versions_and_soft_delete(gcloud: Gcloud, bucket: str) -> None:
    make(gcloud, bucket)
    of = f"gs://{bucket}/o"
    for text in ("one", "two"):
        gcloud.run("storage", "cp", "-", of, stdin=text)
    [deleted] = gcloud.run("storage", "ls", "--soft-deleted", of).stdout.split()
    gcloud.run("storage", "restore", deleted)
    assert gcloud.run("storage", "cat", of).stdout == "one"
    gcloud.run("storage", "buckets", "update", f"gs://{bucket}", "--versioning")
    gcloud.run("storage", "cp", "-", of, stdin="three")
    gcloud.run("storage", "rm", of)
    versions = gcloud.run("storage", "ls", "-a", of).stdout.split()
    assert [gcloud.run("storage", "cat", each).stdout for each in versions] == ["one", "three"]
    gcloud.run("storage", "buckets", "update", f"gs://{bucket}", "--retention-period=1h")
    failed = gcloud.run("storage", "rm", "-a", of, check=False)
    assert "is subject to bucket's retention policy" in failed.stderr
    gcloud.run("storage", "buckets", "update", f"gs://{bucket}", "--clear-retention-period")
    gcloud.run("storage", "rm", "-r", f"gs://{bucket}")
