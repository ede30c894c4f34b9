"""Cloud Storage refuses callers what the policies of buckets and projects do not grant them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.members import Member, grant, in_thread, make_role
from tpuctl.emulator.iam.predefined_roles import known_permissions

BUCKET = "data"
ROOT = f"/storage/v1/b/{BUCKET}"
UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name="


def refusal(email: str, permission: str, noun: str) -> tuple[int, str]:
    """As InPars#13, ansible-collections/google.cloud#575 and STARCOP#6 quote them."""
    return 403, (
        f"{email} does not have {permission} access to the Google Cloud {noun}. Permission "
        f"'{permission}' denied on resource (or it may not exist)."
    )


def of_object(ann: Member, verb: str) -> tuple[int, str]:
    return refusal(ann.email, f"storage.objects.{verb}", "Storage object")


def of_bucket(ann: Member, permission: str) -> tuple[int, str]:
    return refusal(ann.email, f"storage.{permission}", "Storage bucket")


@pytest.fixture
async def ann(cloud: Any) -> Member:
    def fill() -> None:
        with Member.owner(cloud).storage() as client:
            bucket = client.bucket(BUCKET)
            bucket.iam_configuration.uniform_bucket_level_access_enabled = True
            client.create_bucket(bucket, location="europe-west4")
            for name in ("in/a", "out/b"):
                bucket.blob(name).upload_from_string(name)

    await asyncio.to_thread(fill)
    return await asyncio.to_thread(Member, cloud, "ann")


# Method, path, what each needs, and of what the refusal speaks.
CALLS = [
    ("GET", ROOT, "buckets.get", "bucket"),
    ("PATCH", ROOT, "buckets.update", "bucket"),
    ("PUT", ROOT, "buckets.update", "bucket"),
    ("GET", f"{ROOT}/iam", "buckets.getIamPolicy", "bucket"),
    ("PUT", f"{ROOT}/iam", "buckets.setIamPolicy", "bucket"),
    ("GET", f"{ROOT}/storageLayout", "buckets.get", "bucket"),
    ("GET", f"{ROOT}/o", "objects.list", "bucket"),
    ("GET", f"{ROOT}/o/in%2Fa", "objects.get", "object"),
    ("GET", f"{ROOT}/o/in%2Fa?alt=media", "objects.get", "object"),
    ("PATCH", f"{ROOT}/o/in%2Fa", "objects.update", "object"),
    ("POST", f"{UPLOAD}in/new", "objects.create", "object"),
    ("GET", f"/{BUCKET}/in/a", "objects.get", "object"),
    ("PUT", f"/{BUCKET}/in/new2", "objects.create", "object"),
    ("DELETE", f"/{BUCKET}/out/b", "objects.delete", "object"),
    ("DELETE", f"{ROOT}/o/in%2Fa", "objects.delete", "object"),
    ("DELETE", ROOT, "buckets.delete", "bucket"),
]


@in_thread
def test_each_call_needs_its_permission_and_no_other(cloud: Any, ann: Member) -> None:
    """Under a role of all permissions of storage but this one it is refused, with it it is not."""
    every = [one for one in known_permissions() if one.startswith("storage.")]
    role = make_role(cloud, "most", every)
    grant(cloud, "projects/local-project", role, ann.name)
    for verb, path, permission, noun in CALLS:
        full = f"storage.{permission}"
        body: dict[str, Any] = {} if verb in ("GET", "DELETE") else {"json": {}}
        make_role(cloud, "most", [one for one in every if one != full])
        answer = ann.ask(verb, path, **body)
        assert answer.status_code == 403, (verb, path)
        is_bare = path.startswith("/data/") or "alt=media" in path
        told = answer.text if is_bare else answer.json()["error"]["message"]
        assert refusal(ann.email, full, f"Storage {noun}")[1] in told
        if path.startswith("/data/"):  # google-github-actions/setup-gcloud#49
            assert "<Code>AccessDenied</Code><Message>Access denied.</Message><Details>" in told
        make_role(cloud, "most", [full])
        assert ann.ask(verb, path, **body).status_code in (200, 204, 409), (verb, path)


@in_thread
def test_without_anything_nothing_is_seen_of_a_project_either(cloud: Any, ann: Member) -> None:
    told = refusal(ann.email, "storage.buckets.list", "project")
    assert ann.told("GET", "/storage/v1/b?project=local-project") == told
    told = refusal(ann.email, "storage.buckets.create", "project")
    path = "/storage/v1/b?project=local-project"
    assert ann.told("POST", path, json={"name": "another"}) == told
    assert ann.told("GET", "/storage/v1/b/absent")[0] == 404


@in_thread
def test_replacing_an_object_deletes_it(cloud: Any, ann: Member) -> None:
    """cloud.google.com/storage/docs/access-control/iam-json: insert, compose and rewrite need
    storage.objects.delete where there is an object of that name."""
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectCreator", ann.name)
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectViewer", ann.name)

    assert ann.told("POST", f"{UPLOAD}in/new", data=b"x")[0] == 200
    assert ann.told("POST", f"{UPLOAD}in/new", data=b"x") == of_object(ann, "delete")
    multipart = "/upload/storage/v1/b/data/o?uploadType=resumable"
    assert ann.told("POST", multipart, json={"name": "in/a"}) == of_object(ann, "delete")
    compose = {"sourceObjects": [{"name": "in/a"}, {"name": "out/b"}]}
    assert ann.told("POST", f"{ROOT}/o/all/compose", json=compose)[0] == 200
    told = ann.told("POST", f"{ROOT}/o/out%2Fb/compose", json=compose)
    assert told == of_object(ann, "delete")
    copy = f"{ROOT}/o/in%2Fa/rewriteTo/b/{BUCKET}/o/"
    assert ann.told("POST", f"{copy}copy")[0] == 200
    assert ann.told("POST", f"{copy}copy") == of_object(ann, "delete")


@in_thread
def test_copies_and_compositions_read_their_sources(cloud: Any, ann: Member) -> None:
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectCreator", ann.name)

    compose = {"sourceObjects": [{"name": "in/a"}]}
    told = ann.told("POST", f"{ROOT}/o/new/compose", json=compose)
    assert told == of_object(ann, "get")
    for verb in ("rewriteTo", "copyTo"):
        told = ann.told("POST", f"{ROOT}/o/in%2Fa/{verb}/b/{BUCKET}/o/copy")
        assert told == of_object(ann, "get")


@in_thread
def test_the_official_client_says_it(cloud: Any, ann: Member) -> None:
    with ann.storage() as client, pytest.raises(exceptions.Forbidden) as caught:
        client.bucket(BUCKET).blob("in/a").download_as_bytes()
    assert of_object(ann, "get")[1] in caught.value.message
    with ann.storage() as client, pytest.raises(exceptions.Forbidden) as caught:
        list(client.list_blobs(BUCKET))
    assert of_bucket(ann, "objects.list")[1] in caught.value.message


@in_thread
def test_roles_come_from_the_project_and_above(cloud: Any, ann: Member) -> None:
    for resource in ("projects/local-project", "organizations/400000000001"):
        member = Member(cloud, resource.partition("/")[0])
        grant(cloud, resource, "roles/storage.objectViewer", member.name)
        assert member.told("GET", f"{ROOT}/o/in%2Fa")[0] == 200


@in_thread
def test_basic_roles_reach_buckets_by_their_convenience_members(cloud: Any, ann: Member) -> None:
    """A project's editors own its buckets because the buckets' policies say so."""
    project, path = "projects/local-project", f"{ROOT}/o/in%2Fa"
    grant(cloud, project, "roles/viewer", ann.name)
    bob = Member(cloud, "bob")
    grant(cloud, project, "roles/editor", bob.name)

    assert ann.told("GET", path)[0] == 200
    assert ann.told("DELETE", path) == of_object(ann, "delete")
    assert bob.told("DELETE", path)[0] == 204
    with Member.owner(cloud).storage() as client:
        policy = client.bucket(BUCKET).get_iam_policy(requested_policy_version=3)
        policy.bindings = [one for one in policy.bindings if "legacyObject" not in one["role"]]
        client.bucket(BUCKET).set_iam_policy(policy)
    assert bob.told("GET", f"{ROOT}/o/out%2Fb") == of_object(bob, "get")
    assert bob.told("GET", f"{ROOT}/o")[0] == 200


@in_thread
def test_objects_without_uniform_access_have_the_usual_lists(cloud: Any, ann: Member) -> None:
    grant(cloud, "projects/local-project", "roles/viewer", ann.name)

    with Member.owner(cloud).storage() as client:
        client.create_bucket("fine-grained").blob("a").upload_from_string("a")
    assert ann.told("GET", "/storage/v1/b/fine-grained/o/a")[0] == 200
    told = ann.told("DELETE", "/storage/v1/b/fine-grained/o/a")
    assert told == of_object(ann, "delete")


@in_thread
def test_a_condition_narrows_a_grant(cloud: Any, ann: Member) -> None:
    condition = f'resource.name.startsWith("projects/_/buckets/{BUCKET}/objects/in/")'
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectAdmin", ann.name, condition=condition)

    assert ann.told("GET", f"{ROOT}/o/in%2Fa")[0] == 200
    assert ann.told("POST", f"{UPLOAD}in/new", data=b"x")[0] == 200
    assert ann.told("GET", f"{ROOT}/o/out%2Fb") == of_object(ann, "get")
    assert ann.told("POST", f"{UPLOAD}out/new", data=b"x") == of_object(ann, "create")
    asked = f"{ROOT}/iam/testPermissions?permissions=storage.objects.get"
    assert "permissions" not in ann.ask("GET", asked).json()


@in_thread
def test_members_that_are_many_and_members_that_are_others(cloud: Any, ann: Member) -> None:
    owner, path = Member.owner(cloud), f"{ROOT}/o/in%2Fa"
    fresh = owner.must("GET", f"{ROOT}/iam")
    for member, is_ann in (
        ("allUsers", True),
        ("allAuthenticatedUsers", True),
        ("domain:example.com", True),
        ("domain:b.example", False),
        ("group:all@example.com", False),
        ("user:ann@example.org", False),
        ("deleted:user:ann@example.com?uid=1", False),
        ("serviceAccount:ann@example.com", False),
    ):
        owner.must("PUT", f"{ROOT}/iam", json={"bindings": fresh["bindings"]})
        grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectViewer", member)
        assert ann.told("GET", path) == ((200, "") if is_ann else of_object(ann, "get")), member


@in_thread
def test_what_may_be_done_is_asked_by_the_same_truth(cloud: Any, ann: Member) -> None:
    names = ["storage.objects.get", "storage.objects.delete", "storage.buckets.get"]
    asked = f"{ROOT}/iam/testPermissions?" + "&".join(f"permissions={name}" for name in names)
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectViewer", ann.name)

    assert ann.ask("GET", asked).json()["permissions"] == names[:1]
    assert cloud.request("GET", asked).json()["permissions"] == names
    Member.owner(cloud).must("PATCH", "/_local/settings", json={"denied_permissions": names[1:2]})
    assert cloud.request("GET", asked).json()["permissions"] == [names[0], names[2]]
    answer = cloud.request("DELETE", f"{ROOT}/o/in%2Fa")
    assert answer.status_code == 403
    assert "owner@local-cloud.invalid does not have storage.objects.delete" in answer.text


@in_thread
def test_a_token_is_limited_by_its_scopes(cloud: Any, ann: Member) -> None:
    """googleapis/google-cloud-cpp#7334: how Cloud Storage says it."""
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.admin", ann.name)
    scope = "https://www.googleapis.com/auth/devstorage.read_only"
    limited = Member(cloud, "ann", scopes=[scope])

    told = 403, "Provided scope(s) are not authorized"
    assert limited.told("GET", f"{ROOT}/o/in%2Fa")[0] == 200
    assert limited.told("POST", f"{UPLOAD}new", data=b"x") == told
    assert limited.told("GET", f"{ROOT}/iam") == told
    assert ann.told("POST", f"{UPLOAD}new", data=b"x")[0] == 200


@in_thread
def test_a_fault_that_denies_speaks_as_storage_does(cloud: Any, ann: Member) -> None:
    fault = {"kind": "deny", "method": "objects.insert", "caller": "ann@*", "times": 1}
    Member.owner(cloud).must("POST", "/_local/faults", json=fault)
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.admin", ann.name)

    assert ann.told("POST", f"{UPLOAD}new", data=b"x") == of_object(ann, "create")
    assert ann.told("POST", f"{UPLOAD}new", data=b"x")[0] == 200
