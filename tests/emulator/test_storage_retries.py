"""Google's client of Cloud Storage repeats interrupted calls as its authors expect of it.

Their test server interrupts calls on instruction; here, faults of the local cloud do.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from google.oauth2.credentials import Credentials

from tests.support.locations import PROJECT
from tests.support.projects import serving
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

TABLE = Path(__file__).with_name("storage_retries.toml")
DATA = os.urandom(512 * 1024)
LARGE = os.urandom(10 * 1024 * 1024)  # uploaded as resumable, in one request
SAMPLE = 6
# The client leaves connections open whose download broke.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Target:
    """What a case's call is made on."""

    client: storage.Client
    bucket: storage.Bucket
    blob: storage.Blob  # contains DATA
    has_precondition: bool

    def if_(self, name: str, value: Any) -> dict[str, Any]:
        return {f"if_{name}_match": value} if self.has_precondition else {}

    def new_bucket(self) -> storage.Bucket:
        return self.client.bucket(f"retried-{next(NUMBERS)}")

    def new_blob(self) -> storage.Blob:
        return self.bucket.blob(f"new-{next(NUMBERS)}")


Call = Callable[[], Any]


def delete_bucket(target: Target) -> Call:
    bucket = target.new_bucket()
    bucket.create()
    return bucket.delete


def lock_retention_policy(target: Target) -> Call:
    bucket = target.new_bucket()
    bucket.retention_period = 2
    bucket.create()
    return bucket.lock_retention_policy


def patch(target: Target, resource: Any, field: str) -> Call:
    setattr(resource, field, {"number": str(next(NUMBERS))})
    return partial(resource.patch, **metageneration(target, resource))


def update(target: Target, resource: Any) -> Call:
    return partial(resource.update, **metageneration(target, resource))


def set_policy(target: Target) -> Call:
    policy = target.bucket.get_iam_policy(requested_policy_version=3)
    if not target.has_precondition:
        policy.etag = None
    return partial(target.bucket.set_iam_policy, policy)


def metageneration(target: Target, resource: Any) -> dict[str, Any]:
    return target.if_("metageneration", resource.metageneration)


def compose(target: Target) -> Call:
    return partial(target.new_blob().compose, [target.blob], **target.if_("generation", 0))


def copy(target: Target) -> Call:
    name = target.new_blob().name
    place = (target.blob, target.bucket, name)
    return partial(target.bucket.copy_blob, *place, **target.if_("generation", 0))


def rewrite(target: Target) -> Call:
    return partial(target.new_blob().rewrite, target.blob, **target.if_("generation", 0))


def upload(target: Target) -> Call:
    return partial(target.new_blob().upload_from_string, DATA, **target.if_("generation", 0))


def begin_resumable(target: Target) -> Call:
    return partial(target.new_blob().create_resumable_upload_session, **target.if_("generation", 0))


def upload_large(target: Target) -> Call:
    blob = target.new_blob()

    def upload() -> None:
        blob.upload_from_string(LARGE, **target.if_("generation", 0))
        assert blob.download_as_bytes() == LARGE

    return upload


def download(target: Target, **options: Any) -> Call:
    def read() -> None:
        assert target.blob.download_as_bytes(**options) == DATA[options.get("start") :]

    return read


def read_file(target: Target) -> Call:
    def read() -> None:
        with target.blob.open("rb") as file:
            assert file.read() == DATA

    return read


CALLS: dict[str, tuple[Callable[[Target], Call], ...]] = {
    "buckets.delete": (delete_bucket,),
    "buckets.get": (
        lambda target: target.bucket.reload,
        lambda target: target.bucket.exists,
        lambda target: partial(target.client.get_bucket, target.bucket.name),
        lambda target: partial(target.client.lookup_bucket, target.bucket.name),
    ),
    "buckets.getIamPolicy": (lambda target: target.bucket.get_iam_policy,),
    "buckets.insert": (lambda target: target.new_bucket().create,),
    "buckets.list": (lambda target: lambda: [*target.client.list_buckets()],),
    "buckets.lockRetentionPolicy": (lock_retention_policy,),
    "buckets.patch": (lambda target: patch(target, target.bucket, "labels"),),
    "buckets.setIamPolicy": (set_policy,),
    "buckets.testIamPermissions": (
        lambda target: partial(target.bucket.test_iam_permissions, ["storage.objects.get"]),
    ),
    "buckets.update": (lambda target: update(target, target.bucket),),
    "objects.compose": (compose,),
    "objects.copy": (copy,),
    "objects.delete": (lambda target: target.blob.delete,),
    "objects.get": (
        lambda target: target.blob.reload,
        lambda target: target.blob.exists,
        lambda target: partial(target.bucket.get_blob, target.blob.name),
        download,
    ),
    "objects.get: content": (download, partial(download, start=1024), read_file),
    "objects.insert": (upload, begin_resumable),
    "objects.insert: resumable": (upload_large,),
    "objects.list": (lambda target: lambda: [*target.bucket.list_blobs()],),
    "objects.patch": (lambda target: patch(target, target.blob, "metadata"),),
    "objects.rewrite": (rewrite,),
    "objects.update": (lambda target: update(target, target.blob),),
    "projects.serviceAccount.get": (lambda target: target.client.get_service_account_email,),
}


@dataclass(frozen=True)
class Case:
    """One call, what happens to it, and whether the client then succeeds."""

    rule: str
    method: str
    number: int  # of the method's CALLS
    prepare: Callable[[Target], Call]
    faults: tuple[str, ...]
    has_precondition: bool
    succeeds: bool

    def __str__(self) -> str:
        return f"{self.rule}: {self.method}: {', '.join(self.faults)}: {self.number}"


def load() -> list[Case]:
    rules = tomllib.loads(TABLE.read_text("utf-8"))["rule"]
    return [
        Case(
            *(rule["name"], method, number, prepare, tuple(faults)),
            *(rule.get("has_precondition", False), rule["succeeds"]),
        )
        for rule in rules
        for method, faults in itertools.product(rule["methods"], rule["faults"])
        for number, prepare in enumerate(CALLS[method])
    ]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    with serving(tmp_path_factory.mktemp("retries") / "local") as cloud:
        yield cloud


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, the first pause of the client is up to a second."""
    monkeypatch.setattr(DEFAULT_RETRY, "_initial", 0.01)


@pytest.fixture(scope="module")
def client(cloud: LocalCloud) -> Iterator[storage.Client]:
    client = storage.Client(
        project=PROJECT,
        credentials=Credentials(token=cloud.token),
        client_options={"api_endpoint": cloud.url},
    )
    yield client
    client._http.close()
    del client
    gc.collect()  # what it left open, before other tests


def add_fault(cloud: LocalCloud, method: str, fault: str) -> str:
    """Plan what happens to the next call of the method; returns the fault's id."""
    kind, _, kib = fault.partition(" after ")
    after = {"after_bytes": int(kib) * 1024} if kib else {}
    if kind == "reset":
        added = remote_control.add_fault(cloud, "drop-request", method=method)
    elif kind == "broken":
        added = remote_control.add_fault(cloud, "truncate", method=method, **after)
    elif kib:
        more = {"body": "request", "code": "UNAVAILABLE"}
        added = remote_control.add_fault(cloud, "truncate", method=method, **after, **more)
    else:
        added = remote_control.add_fault(cloud, "error", method=method, http=int(kind))
    return str(added["id"])


@pytest.mark.soak
@pytest.mark.parametrize("case", load(), ids=str)
def test_client_repeats_calls(case: Case, cloud: LocalCloud, client: storage.Client) -> None:
    run(case, cloud, client)


def test_client_repeats_sampled_calls(cloud: LocalCloud, client: storage.Client) -> None:
    """Of each method one that succeeds, since the record of methods lists it, and some of all."""
    cases = load()
    repeated = [
        random.choice([case for case in cases if case.method == method and case.succeeds])
        for method in CALLS
    ]
    for case in (*repeated, *random.sample(cases, SAMPLE)):
        run(case, cloud, client)


def run(case: Case, cloud: LocalCloud, client: storage.Client) -> None:
    bucket = client.bucket(f"retries-{next(NUMBERS)}")
    bucket.create()
    blob = bucket.blob("blob")
    blob.upload_from_string(DATA)
    call = case.prepare(Target(client, bucket, blob, case.has_precondition))
    method = f"storage.{case.method.partition(':')[0]}"
    faults = [add_fault(cloud, method, fault) for fault in case.faults]
    error: Exception | None = None
    try:
        call()
    except Exception as caught:  # of requests, urllib3, or Google's clients
        error = caught
    applied = {fault: remote_control.remove_fault(cloud, fault)["applied"] for fault in faults}
    assert (error is None) == case.succeeds, f"{case}: {error}"
    assert applied == dict.fromkeys(faults, 1), case
