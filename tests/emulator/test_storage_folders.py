"""Folders of buckets with a hierarchical namespace, by Storage Control and the JSON API."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.cloud import storage
from google.cloud import storage_control_v2 as control
from google.cloud.storage_control_v2.services.storage_control.transports import (
    StorageControlGrpcTransport,
)

from tests.support.callers import Member, grant, make_role

BUCKET = "tree"
BUCKET_PARENT = f"projects/_/buckets/{BUCKET}"


def make_bucket(cloud: Any, name: str = BUCKET, *, is_hierarchical: bool = True) -> storage.Bucket:
    bucket = storage.Bucket(cloud.storage(), name)
    bucket.iam_configuration.uniform_bucket_level_access_enabled = True
    bucket.hierarchical_namespace_enabled = is_hierarchical
    bucket.create()
    return bucket


def client_of(cloud: Any, token: str | None = None) -> control.StorageControlClient:
    transport = StorageControlGrpcTransport(channel=cloud.channel(token))
    return control.StorageControlClient(transport=transport)


def create(client: control.StorageControlClient, folder: str, **more: Any) -> control.Folder:
    request = control.CreateFolderRequest(parent=BUCKET_PARENT, folder_id=folder, **more)
    return client.create_folder(request)


def names(client: control.StorageControlClient, **fields: Any) -> list[str]:
    request = control.ListFoldersRequest(parent=BUCKET_PARENT, **fields)
    return [folder.name.partition("/folders/")[2] for folder in client.list_folders(request)]


def call(cloud: Any, verb: str, path: str, body: Any = None) -> Any:
    response = requests.request(
        verb,
        f"{cloud.url}/storage/v1/b/{BUCKET}/{path}",
        json=body,
        headers={"Authorization": f"Bearer {cloud.token}"},
        timeout=30,
    )
    return response.json() if response.content else response.status_code


def test_folder_lifecycle(cloud: Any) -> None:
    make_bucket(cloud)
    client = client_of(cloud)
    folder = create(client, "a/")
    assert (folder.name, folder.metageneration) == (f"{BUCKET_PARENT}/folders/a/", 1)
    assert client.get_folder(name=folder.name) == folder
    with pytest.raises(exceptions.AlreadyExists):
        create(client, "a/")
    with pytest.raises(exceptions.NotFound):
        client.get_folder(name=f"{BUCKET_PARENT}/folders/b/")
    create(client, "a/b/")
    with pytest.raises(exceptions.FailedPrecondition):
        client.delete_folder(name=folder.name)
    client.delete_folder(name=f"{BUCKET_PARENT}/folders/a/b/")
    client.delete_folder(name=folder.name)
    assert names(client) == []


def test_parents_of_folder_must_exist_unless_created_with_it(cloud: Any) -> None:
    make_bucket(cloud)
    client = client_of(cloud)
    with pytest.raises(exceptions.FailedPrecondition):
        create(client, "a/b/c/")
    create(client, "a/b/c/", recursive=True)
    assert names(client) == ["a/", "a/b/", "a/b/c/"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["a/", "a/b/", "a/b/c/", "d/"]),
        ({"delimiter": "/"}, ["a/", "d/"]),
        ({"prefix": "a/"}, ["a/", "a/b/", "a/b/c/"]),
        ({"prefix": "a/", "delimiter": "/"}, ["a/", "a/b/"]),
        ({"lexicographic_start": "a/b/", "lexicographic_end": "d/"}, ["a/b/", "a/b/c/"]),
        ({"page_size": 1}, ["a/", "a/b/", "a/b/c/", "d/"]),
    ],
)
def test_folders_are_listed(cloud: Any, fields: Any, expected: list[str]) -> None:
    make_bucket(cloud)
    client = client_of(cloud)
    create(client, "a/b/c/", recursive=True)
    create(client, "d/")
    assert names(client, **fields) == expected


@pytest.mark.parametrize("fields", [{"prefix": "a"}, {"delimiter": "-"}])
def test_folders_are_not_listed_by_other_prefixes(cloud: Any, fields: Any) -> None:
    make_bucket(cloud)
    with pytest.raises(exceptions.InvalidArgument):
        names(client_of(cloud), **fields)


def test_objects_create_folders_which_outlive_them(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    blob = bucket.blob("a/b/file")
    blob.upload_from_string("text")
    bucket.move_blob(blob, "c/file")
    bucket.blob("c/file").delete()
    assert names(client_of(cloud)) == ["a/", "a/b/", "c/"]


def test_folder_is_renamed_with_all_below_it(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    for name in ("a/b/file", "a/other", "ab/file"):
        bucket.blob(name).upload_from_string(name)
    generation = bucket.get_blob("a/b/file").generation
    client = client_of(cloud)
    create(client, "new/")
    operation = client.rename_folder(
        name=f"{BUCKET_PARENT}/folders/a/", destination_folder_id="new/place/"
    )
    assert operation.result(timeout=30).name == f"{BUCKET_PARENT}/folders/new/place/"
    assert operation.metadata.source_folder_id == "a/"
    assert operation.metadata.destination_folder_id == "new/place/"
    assert names(client) == ["ab/", "new/", "new/place/", "new/place/b/"]
    blobs = {blob.name: blob.generation for blob in bucket.list_blobs()}
    assert blobs.keys() == {"ab/file", "new/place/b/file", "new/place/other"}
    assert blobs["new/place/b/file"] == generation
    assert bucket.blob("new/place/b/file").download_as_bytes() == b"a/b/file"


@pytest.mark.parametrize(
    ("source", "destination", "error"),
    [
        ("absent/", "new/", exceptions.NotFound),
        ("a/", "d/", exceptions.AlreadyExists),
        ("a/", "absent/new/", exceptions.FailedPrecondition),
        ("a/", "a/b/", exceptions.InvalidArgument),
    ],
)
def test_folder_is_not_renamed(cloud: Any, source: str, destination: str, error: Any) -> None:
    bucket = make_bucket(cloud)
    bucket.blob("a/file").upload_from_string("text")
    client = client_of(cloud)
    create(client, "d/")
    with pytest.raises(error):
        client.rename_folder(
            name=f"{BUCKET_PARENT}/folders/{source}", destination_folder_id=destination
        ).result(timeout=30)
    assert names(client) == ["a/", "d/"]
    assert bucket.blob("a/file").exists()


def test_folder_is_deleted_with_all_below_it(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    for name in ("a/b/file", "a/other", "ab/file"):
        bucket.blob(name).upload_from_string(name)
    client = client_of(cloud)
    client.delete_folder_recursive(name=f"{BUCKET_PARENT}/folders/a/").result(timeout=30)
    assert names(client) == ["ab/"]
    assert [blob.name for blob in bucket.list_blobs()] == ["ab/file"]


@pytest.mark.parametrize(
    ("condition", "is_met"),
    [
        ({"if_metageneration_match": 1}, True),
        ({"if_metageneration_match": 2}, False),
        ({"if_metageneration_not_match": 2}, True),
        ({"if_metageneration_not_match": 1}, False),
    ],
)
def test_folder_has_preconditions(cloud: Any, condition: Any, is_met: bool) -> None:
    make_bucket(cloud)
    client = client_of(cloud)
    name = create(client, "a/").name
    if is_met:
        client.delete_folder(control.DeleteFolderRequest(name=name, **condition))
    else:
        with pytest.raises(exceptions.FailedPrecondition):
            client.delete_folder(control.DeleteFolderRequest(name=name, **condition))
    assert names(client) == ([] if is_met else ["a/"])


def test_json_api_has_the_same_folders(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    folder = call(cloud, "POST", "folders?recursive=true", {"name": "a/b/"})
    assert (folder["kind"], folder["id"], folder["name"]) == (
        "storage#folder",
        f"{BUCKET}/a/b/",
        "a/b/",
    )
    bucket.blob("a/b/file").upload_from_string("text")
    assert call(cloud, "GET", "folders/a%2Fb%2F") == folder
    first = call(cloud, "GET", "folders?pageSize=1")
    assert [item["name"] for item in first["items"]] == ["a/"]
    rest = call(cloud, "GET", f"folders?pageToken={first['nextPageToken']}")
    assert [item["name"] for item in rest["items"]] == ["a/b/"]
    assert call(cloud, "DELETE", "folders/a%2F")["error"]["code"] == 412
    operation = call(cloud, "POST", "folders/a%2F/renameTo/folders/c%2F")
    assert (operation["kind"], operation["done"]) == ("storage#operation", True)
    assert operation["response"]["name"] == f"{BUCKET_PARENT}/folders/c/"
    identifier = operation["name"].rpartition("/")[2]
    assert call(cloud, "GET", f"operations/{identifier}") == operation
    assert call(cloud, "GET", "operations")["operations"] == [operation]
    assert call(cloud, "GET", "folders/c%2Fb")["name"] == "c/b/"
    call(cloud, "POST", "folders/c%2F/deleteRecursive")
    assert "items" not in call(cloud, "GET", "o")


def test_objects_are_listed_with_folders_as_prefixes(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    client = client_of(cloud)
    create(client, "empty/inner/", recursive=True)
    bucket.blob("full/file").upload_from_string("text")

    def prefixes(prefix: str, *, with_folders: bool) -> set[str]:
        blobs = bucket.list_blobs(
            prefix=prefix, delimiter="/", include_folders_as_prefixes=with_folders
        )
        list(blobs)
        return set(blobs.prefixes)

    assert prefixes("", with_folders=True) == {"empty/", "full/"}
    assert prefixes("", with_folders=False) == {"full/"}
    assert prefixes("empty/", with_folders=True) == {"empty/inner/"}
    assert prefixes("empty/inner/", with_folders=True) == set()


@pytest.mark.parametrize("is_hierarchical", [True, False])
def test_layout_tells_of_namespace(cloud: Any, is_hierarchical: bool) -> None:
    bucket = make_bucket(cloud, is_hierarchical=is_hierarchical)
    layout = client_of(cloud).get_storage_layout(name=f"{BUCKET_PARENT}/storageLayout")
    assert layout.hierarchical_namespace.enabled == is_hierarchical
    assert (layout.location, layout.location_type) == ("US", "multi-region")
    bucket.reload()
    assert bool(bucket.hierarchical_namespace_enabled) == is_hierarchical
    answer = call(cloud, "GET", "storageLayout")
    assert answer["hierarchicalNamespace"] == {"enabled": is_hierarchical}


def test_flat_bucket_has_no_folders(cloud: Any) -> None:
    make_bucket(cloud, is_hierarchical=False)
    client = client_of(cloud)
    with pytest.raises(exceptions.FailedPrecondition):
        create(client, "a/")
    with pytest.raises(exceptions.FailedPrecondition):
        names(client)


def test_missing_bucket_has_no_folders(cloud: Any) -> None:
    with pytest.raises(exceptions.NotFound):
        names(client_of(cloud))


@pytest.mark.parametrize("settings", [{}, {"versioning_enabled": True}])
def test_settings_that_namespace_excludes(cloud: Any, settings: dict[str, Any]) -> None:
    bucket = storage.Bucket(cloud.storage(), BUCKET)
    bucket.hierarchical_namespace_enabled = True
    if settings:
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.versioning_enabled = True
    with pytest.raises(exceptions.BadRequest):
        bucket.create()


def test_namespace_of_existing_bucket_does_not_change(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    bucket.versioning_enabled = True
    with pytest.raises(exceptions.BadRequest):
        bucket.patch()
    bucket = cloud.storage().get_bucket(BUCKET)
    bucket.labels = {"a": "b"}
    bucket.update()
    bucket.hierarchical_namespace_enabled = False
    with pytest.raises(exceptions.BadRequest):
        bucket.patch()


def test_bucket_is_deleted_with_its_folders(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    create(client_of(cloud), "a/")
    bucket.delete()
    make_bucket(cloud)
    assert names(client_of(cloud)) == []


def test_managed_folders_of_renamed_folder_are_refused(cloud: Any) -> None:
    make_bucket(cloud)
    client = client_of(cloud)
    create(client, "a/")
    call(cloud, "POST", "managedFolders", {"name": "a/m/"})
    with pytest.raises(exceptions.MethodNotImplemented, match="managed folders"):
        client.rename_folder(name=f"{BUCKET_PARENT}/folders/a/", destination_folder_id="b/")


def test_other_methods_are_refused_by_name(cloud: Any) -> None:
    make_bucket(cloud)
    client = client_of(cloud)
    with pytest.raises(exceptions.MethodNotImplemented, match="IntelligenceConfig"):
        client.get_project_intelligence_config(
            name="projects/local-project/locations/global/intelligenceConfig"
        )
    with pytest.raises(exceptions.MethodNotImplemented, match="ListAnywhereCaches"):
        list(client_of(cloud).list_anywhere_caches(parent=BUCKET_PARENT))


def test_folders_require_permissions_of_their_bucket(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    bucket.blob("a/file").upload_from_string("text")
    reader = Member(cloud, "reader")
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectViewer", reader.name)
    client = client_of(cloud, reader.token)
    assert names(client) == ["a/"]
    with pytest.raises(exceptions.Forbidden, match=r"storage\.folders\.create"):
        create(client, "b/")
    with pytest.raises(exceptions.Forbidden, match=r"storage\.folders\.(create|rename)"):
        client.rename_folder(name=f"{BUCKET_PARENT}/folders/a/", destination_folder_id="b/")
    with pytest.raises(exceptions.NotFound):
        client.get_folder(name="projects/_/buckets/absent/folders/a/")
    status, message = reader.status_and_message("DELETE", f"/storage/v1/b/{BUCKET}/folders/a%2F")
    assert status == 403
    assert "storage.folders.delete" in message


def test_new_folders_of_an_object_require_permission(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    bucket.blob("a/file").upload_from_string("text")
    writer = Member(cloud, "writer")
    role = make_role(cloud, "writes", ["storage.objects.create"])
    grant(cloud, f"buckets/{BUCKET}", role, writer.name)
    path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name="
    assert writer.send("POST", f"{path}a/other", data=b"x").status_code == 200
    assert writer.send("POST", f"{path}b/other", data=b"x").status_code == 403


def test_folders_are_billed_to_requester(cloud: Any) -> None:
    bucket = make_bucket(cloud)
    bucket.requester_pays = True
    bucket.patch()
    writer = Member(cloud, "writer")
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectAdmin", writer.name)
    client = client_of(cloud, writer.token)
    request = control.CreateFolderRequest(parent=BUCKET_PARENT, folder_id="a/")
    with pytest.raises(exceptions.InvalidArgument, match="requester pays bucket"):
        client.create_folder(request)
    billed = [("x-goog-user-project", "local-project")]
    with pytest.raises(exceptions.Forbidden, match=r"serviceusage\.services\.use"):
        client.create_folder(request, metadata=billed)
    role = "roles/serviceusage.serviceUsageConsumer"
    grant(cloud, "projects/local-project", role, writer.name)
    assert client.create_folder(request, metadata=billed).name == f"{BUCKET_PARENT}/folders/a/"
