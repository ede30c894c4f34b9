"""Cloud Storage denies calls that bucket and project policies do not grant."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.callers import Member, grant, make_role
from tpuctl.emulator.iam.predefined_roles import known_permissions

BUCKET = "data"
ROOT = f"/storage/v1/b/{BUCKET}"
UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name="


def refusal(email: str, permission: str, noun: str) -> tuple[int, str]:
    """Wording from InPars#13, ansible-collections/google.cloud#575 and STARCOP#6."""
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


# Method, path, required permission, and the noun in the error.
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


def test_each_storage_call_requires_one_permission(cloud: Any, ann: Member) -> None:
    """Denied with all other storage permissions, allowed with only this one."""
    all_permissions = [name for name in known_permissions() if name.startswith("storage.")]
    role = make_role(cloud, "most", all_permissions)
    grant(cloud, "projects/local-project", role, ann.name)
    for verb, path, permission, noun in CALLS:
        full = f"storage.{permission}"
        body: dict[str, Any] = {} if verb in ("GET", "DELETE") else {"json": {}}
        make_role(cloud, "most", [name for name in all_permissions if name != full])
        answer = ann.send(verb, path, **body)
        assert answer.status_code == 403, (verb, path)
        is_bare = path.startswith("/data/") or "alt=media" in path
        text = answer.text if is_bare else answer.json()["error"]["message"]
        assert refusal(ann.email, full, f"Storage {noun}")[1] in text
        if path.startswith("/data/"):  # google-github-actions/setup-gcloud#49
            assert "<Code>AccessDenied</Code><Message>Access denied.</Message><Details>" in text
        make_role(cloud, "most", [full])
        assert ann.send(verb, path, **body).status_code in (200, 204, 409), (verb, path)


def test_project_buckets_require_permission(cloud: Any, ann: Member) -> None:
    expected = refusal(ann.email, "storage.buckets.list", "project")
    assert ann.status_and_message("GET", "/storage/v1/b?project=local-project") == expected
    expected = refusal(ann.email, "storage.buckets.create", "project")
    path = "/storage/v1/b?project=local-project"
    assert ann.status_and_message("POST", path, json={"name": "another"}) == expected
    assert ann.status_and_message("GET", "/storage/v1/b/absent")[0] == 404


def test_overwrite_requires_delete_permission(cloud: Any, ann: Member) -> None:
    """cloud.google.com/storage/docs/access-control/iam-json: insert, compose and rewrite require
    storage.objects.delete to overwrite an object."""
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectCreator", ann.name)
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectViewer", ann.name)

    assert ann.status_and_message("POST", f"{UPLOAD}in/new", data=b"x")[0] == 200
    assert ann.status_and_message("POST", f"{UPLOAD}in/new", data=b"x") == of_object(ann, "delete")
    multipart = "/upload/storage/v1/b/data/o?uploadType=resumable"
    assert ann.status_and_message("POST", multipart, json={"name": "in/a"}) == of_object(
        ann, "delete"
    )
    compose = {"sourceObjects": [{"name": "in/a"}, {"name": "out/b"}]}
    assert ann.status_and_message("POST", f"{ROOT}/o/all/compose", json=compose)[0] == 200
    response = ann.status_and_message("POST", f"{ROOT}/o/out%2Fb/compose", json=compose)
    assert response == of_object(ann, "delete")
    copy = f"{ROOT}/o/in%2Fa/rewriteTo/b/{BUCKET}/o/"
    assert ann.status_and_message("POST", f"{copy}copy")[0] == 200
    assert ann.status_and_message("POST", f"{copy}copy") == of_object(ann, "delete")


def test_copy_and_compose_require_get_on_sources(cloud: Any, ann: Member) -> None:
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectCreator", ann.name)

    compose = {"sourceObjects": [{"name": "in/a"}]}
    response = ann.status_and_message("POST", f"{ROOT}/o/new/compose", json=compose)
    assert response == of_object(ann, "get")
    for verb in ("rewriteTo", "copyTo"):
        response = ann.status_and_message("POST", f"{ROOT}/o/in%2Fa/{verb}/b/{BUCKET}/o/copy")
        assert response == of_object(ann, "get")


def test_official_client_reports_missing_permission(cloud: Any, ann: Member) -> None:
    with ann.storage() as client, pytest.raises(exceptions.Forbidden) as caught:
        client.bucket(BUCKET).blob("in/a").download_as_bytes()
    assert of_object(ann, "get")[1] in caught.value.message
    with ann.storage() as client, pytest.raises(exceptions.Forbidden) as caught:
        list(client.list_blobs(BUCKET))
    assert of_bucket(ann, "objects.list")[1] in caught.value.message


def test_bucket_inherits_project_and_organization_roles(cloud: Any, ann: Member) -> None:
    for resource in ("projects/local-project", "organizations/400000000001"):
        member = Member(cloud, resource.partition("/")[0])
        grant(cloud, resource, "roles/storage.objectViewer", member.name)
        assert member.status_and_message("GET", f"{ROOT}/o/in%2Fa")[0] == 200


def test_basic_roles_apply_by_convenience_members(cloud: Any, ann: Member) -> None:
    """A project's editors own its buckets by the buckets' own policies."""
    project, path = "projects/local-project", f"{ROOT}/o/in%2Fa"
    grant(cloud, project, "roles/viewer", ann.name)
    bob = Member(cloud, "bob")
    grant(cloud, project, "roles/editor", bob.name)

    assert ann.status_and_message("GET", path)[0] == 200
    assert ann.status_and_message("DELETE", path) == of_object(ann, "delete")
    assert bob.status_and_message("DELETE", path)[0] == 204
    with Member.owner(cloud).storage() as client:
        policy = client.bucket(BUCKET).get_iam_policy(requested_policy_version=3)
        policy.bindings = [
            binding for binding in policy.bindings if "legacyObject" not in binding["role"]
        ]
        client.bucket(BUCKET).set_iam_policy(policy)
    assert bob.status_and_message("GET", f"{ROOT}/o/out%2Fb") == of_object(bob, "get")
    assert bob.status_and_message("GET", f"{ROOT}/o")[0] == 200


def test_fine_grained_bucket_has_default_acls(cloud: Any, ann: Member) -> None:
    grant(cloud, "projects/local-project", "roles/viewer", ann.name)

    with Member.owner(cloud).storage() as client:
        client.create_bucket("fine-grained").blob("a").upload_from_string("a")
    assert ann.status_and_message("GET", "/storage/v1/b/fine-grained/o/a")[0] == 200
    response = ann.status_and_message("DELETE", "/storage/v1/b/fine-grained/o/a")
    assert response == of_object(ann, "delete")


def test_owner_of_an_object_in_a_fine_grained_bucket_may_read_and_change_it(
    cloud: Any, ann: Member
) -> None:
    root = "/storage/v1/b/fine-grained"
    with Member.owner(cloud).storage() as client:
        client.create_bucket("fine-grained").blob("other").upload_from_string("a")
    grant(cloud, "buckets/fine-grained", "roles/storage.objectCreator", ann.name)
    upload = f"/upload{root}/o?uploadType=media&name="
    assert ann.status_and_message("POST", f"{upload}own", data=b"x")[0] == 200

    assert ann.send("GET", f"{root}/o/own?projection=full").json()["owner"] == {
        "entity": f"user-{ann.email}"
    }
    change = {"metadata": {"a": "b"}}
    assert ann.status_and_message("PATCH", f"{root}/o/own", json=change)[0] == 200
    assert ann.status_and_message("GET", f"{root}/o/other") == of_object(ann, "get")
    assert ann.status_and_message("POST", f"{upload}own", data=b"y") == of_object(ann, "delete")
    uniform = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
    assert Member.owner(cloud).send("PATCH", root, json=uniform).ok
    assert ann.status_and_message("GET", f"{root}/o/own") == of_object(ann, "get")


def test_condition_limits_grant(cloud: Any, ann: Member) -> None:
    condition = f'resource.name.startsWith("projects/_/buckets/{BUCKET}/objects/in/")'
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectAdmin", ann.name, condition=condition)

    assert ann.status_and_message("GET", f"{ROOT}/o/in%2Fa")[0] == 200
    assert ann.status_and_message("POST", f"{UPLOAD}in/new", data=b"x")[0] == 200
    assert ann.status_and_message("GET", f"{ROOT}/o/out%2Fb") == of_object(ann, "get")
    assert ann.status_and_message("POST", f"{UPLOAD}out/new", data=b"x") == of_object(ann, "create")
    url = f"{ROOT}/iam/testPermissions?permissions=storage.objects.get"
    assert "permissions" not in ann.send("GET", url).json()


def test_member_kinds_match_callers(cloud: Any, ann: Member) -> None:
    owner, path = Member.owner(cloud), f"{ROOT}/o/in%2Fa"
    fresh = owner.send_ok("GET", f"{ROOT}/iam")
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
        owner.send_ok("PUT", f"{ROOT}/iam", json={"bindings": fresh["bindings"]})
        grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectViewer", member)
        assert ann.status_and_message("GET", path) == (
            (200, "") if is_ann else of_object(ann, "get")
        ), member


def test_test_permissions_matches_enforcement(cloud: Any, ann: Member) -> None:
    names = ["storage.objects.get", "storage.objects.delete", "storage.buckets.get"]
    url = f"{ROOT}/iam/testPermissions?" + "&".join(f"permissions={name}" for name in names)
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.objectViewer", ann.name)

    assert ann.send("GET", url).json()["permissions"] == names[:1]
    assert cloud.request("GET", url).json()["permissions"] == names
    Member.owner(cloud).send_ok(
        "PATCH", "/_local/settings", json={"denied_permissions": names[1:2]}
    )
    assert cloud.request("GET", url).json()["permissions"] == [names[0], names[2]]
    answer = cloud.request("DELETE", f"{ROOT}/o/in%2Fa")
    assert answer.status_code == 403
    assert "owner@local-cloud.invalid does not have storage.objects.delete" in answer.text


def test_storage_token_is_limited_by_scopes(cloud: Any, ann: Member) -> None:
    """Cloud Storage's wording: googleapis/google-cloud-cpp#7334."""
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.admin", ann.name)
    scope = "https://www.googleapis.com/auth/devstorage.read_only"
    limited = Member(cloud, "ann", scopes=[scope])

    expected = 403, "Provided scope(s) are not authorized"
    assert limited.status_and_message("GET", f"{ROOT}/o/in%2Fa")[0] == 200
    assert limited.status_and_message("POST", f"{UPLOAD}new", data=b"x") == expected
    assert limited.status_and_message("GET", f"{ROOT}/iam") == expected
    assert ann.status_and_message("POST", f"{UPLOAD}new", data=b"x")[0] == 200


def test_deny_fault_uses_storage_wording(cloud: Any, ann: Member) -> None:
    fault = {"kind": "deny", "method": "objects.insert", "caller": "ann@*", "times": 1}
    Member.owner(cloud).send_ok("POST", "/_local/faults", json=fault)
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.admin", ann.name)

    assert ann.status_and_message("POST", f"{UPLOAD}new", data=b"x") == of_object(ann, "create")
    assert ann.status_and_message("POST", f"{UPLOAD}new", data=b"x")[0] == 200


MISSING = "Bucket is a requester pays bucket but no user project provided."


def test_requester_pays_buckets_require_a_project_to_bill(cloud: Any, ann: Member) -> None:
    """cloud.google.com/storage/docs/requester-pays; messages measured by kmoneil/zig-gcp."""
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.admin", ann.name)
    Member.owner(cloud).send("PATCH", ROOT, json={"billing": {"requesterPays": True}})
    copy = f"{ROOT}/o/in%2Fa/rewriteTo/b/{BUCKET}/o/copy"
    calls = [
        *(("GET", path) for path in (ROOT, f"{ROOT}/o", f"{ROOT}/o/in%2Fa", f"{ROOT}/iam")),
        *(("POST", f"{UPLOAD}{name}") for name in ("new", "new2")),
        *(("POST", path) for path in (copy, f"{UPLOAD.replace('media', 'resumable')}new3")),
        ("PATCH", f"{ROOT}/o/in%2Fa"),
        ("GET", f"{ROOT}/o/in%2Fa?alt=media"),
        ("GET", f"/{BUCKET}/in/a"),
        ("PUT", f"/{BUCKET}/in/new"),
        ("DELETE", f"{ROOT}/o/copy"),
    ]

    def send(verb: str, path: str, project: str = "", *, by_header: bool = False) -> Any:
        more: dict[str, Any] = {} if verb in ("GET", "DELETE") else {"json": {}}
        if by_header or path.startswith("/data/"):
            headers = {"X-Goog-User-Project": project} if project else {}
            return ann.send(verb, path, headers=headers, **more)
        query = f"{'&' if '?' in path else '?'}userProject={project}" if project else ""
        return ann.send(verb, path + query, **more)

    denied = refusal(ann.email, "serviceusage.services.use", "project")[1]
    for verb, path in calls:
        for project, status, text, code in (
            ("", 400, MISSING, "UserProjectMissing"),
            (
                "no-such-project",
                400,
                "User project specified in the request is invalid.",
                "UserPro",
            ),
            ("local-project", 403, denied, "AccessDenied"),
        ):
            answer = send(verb, path, project)
            assert (answer.status_code, text in answer.text) == (status, True), (verb, path)
            if path.startswith("/data/"):
                assert f"<Code>{code}" in answer.text
    grant(cloud, "projects/local-project", "roles/serviceusage.serviceUsageConsumer", ann.name)
    for verb, path in calls:
        assert send(verb, path, "local-project").ok, (verb, path)
    assert send("GET", f"{ROOT}/o", "local-project", by_header=True).ok
    assert send("GET", f"{ROOT}/o").status_code == 400
    # Its owners, who set the project's billing account, need name none.
    grant(cloud, "projects/local-project", "roles/billing.projectManager", ann.name)
    assert send("GET", f"{ROOT}/o").ok
    assert Member.owner(cloud).send("GET", f"{ROOT}/o").ok
    assert Member.owner(cloud).send("GET", f"{ROOT}/o?userProject=no-such").status_code == 400


def test_requester_pays_destination_of_a_copy(cloud: Any, ann: Member) -> None:
    grant(cloud, f"buckets/{BUCKET}", "roles/storage.admin", ann.name)
    owner = Member.owner(cloud)
    body = {
        "name": "payers",
        "billing": {"requesterPays": True},
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
    }
    owner.send("POST", "/storage/v1/b?project=local-project", json=body)
    grant(cloud, "buckets/payers", "roles/storage.admin", ann.name)
    path = f"{ROOT}/o/in%2Fa/rewriteTo/b/payers/o/copy"
    assert ann.status_and_message("POST", path) == (400, MISSING)
    grant(cloud, "projects/local-project", "roles/serviceusage.serviceUsageConsumer", ann.name)
    assert ann.status_and_message("POST", f"{path}?userProject=local-project")[0] == 200
    # The session's address carries the project on.
    address = "/upload/storage/v1/b/payers/o?uploadType=resumable&name=o"
    answer = ann.send("POST", address, headers={"X-Goog-User-Project": "local-project"}, json={})
    session = answer.headers["Location"].removeprefix(cloud.url)
    assert ann.send("PUT", session, data=b"x").ok


def test_retention_of_objects_requires_permissions(cloud: Any, ann: Member) -> None:
    """cloud.google.com/storage/docs/access-control/iam-json: objects.patch and buckets.insert."""
    role = make_role(cloud, "some", ["storage.buckets.create", "storage.objects.update"])
    grant(cloud, "projects/local-project", role, ann.name)
    path = "/storage/v1/b?project=local-project&enableObjectRetention=true"
    expected = of_bucket(ann, "buckets.enableObjectRetention")
    assert ann.status_and_message("POST", path, json={"name": "kept"}) == expected
    owner = Member.owner(cloud)
    owner.send("POST", path, json={"name": "kept"})
    owner.send("POST", "/upload/storage/v1/b/kept/o?uploadType=media&name=o", data=b"x")
    path = "/storage/v1/b/kept/o/o"
    body = {"retention": {"mode": "Unlocked", "retainUntilTime": "2130-01-01T00:00:00Z"}}
    assert ann.status_and_message("PATCH", path, json=body) == of_object(ann, "setRetention")
    make_role(cloud, "some", ["storage.objects.update", "storage.objects.setRetention"])
    assert ann.status_and_message("PATCH", path, json=body)[0] == 200
    path += "?overrideUnlockedRetention=true"
    expected = of_object(ann, "overrideUnlockedRetention")
    assert ann.status_and_message("PATCH", path, json=body) == expected
