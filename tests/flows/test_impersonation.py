"""Acting as a service account: its roles count, and calls are its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.callers import Member, grant
from tests.support.grants import ANN, Pipeline
from tests.support.projects import Project
from tpuctl.cli.state import CloudName, State
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.flows.queue.enqueue import append_jobs
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.jobs.job import EXIT_STOPPED
from tpuctl.model.jobs.queue import Queued
from tpuctl.user_account import user_at_host

OPTION, VARIABLE = "--impersonate-service-account", "TPUCTL_IMPERSONATE_SERVICE_ACCOUNT"
CREATOR = "roles/iam.serviceAccountTokenCreator"


@pytest.fixture
def ready(cloud: LocalCloud, tmp_path: Path, project: Project) -> Pipeline:
    """A stack file, and a service account that may plan it."""
    pipeline = Pipeline(cloud, tmp_path, "vm")
    pipeline.let_robot(pipeline.role().permissions)
    api = {"serviceIds": ["iamcredentials.googleapis.com"]}
    path = f"/v1/projects/{pipeline.project}/services:batchEnable"
    Member.owner(cloud).send_ok("POST", path, json=api)
    return pipeline


def test_account_needs_to_be_allowed_to_the_caller(ready: Pipeline, cloud: LocalCloud) -> None:
    bench, as_ann = ready.bench, {"TPUCTL_LOCAL_CALLER": ANN}
    code, _, errors = bench.type(OPTION, ready.email, "plan", **as_ann)
    assert code == 77
    assert "Impersonation denied" in errors
    assert f"gcloud iam service-accounts add-iam-policy-binding {ready.email} " in errors
    grant(cloud, f"projects/{ready.project}", CREATOR, ANN)
    since = remote_control.calls(cloud)[-1]["number"]
    for words, variables in (((OPTION, ready.email), {}), ((), {VARIABLE: ready.email})):
        code, _, errors = bench.type(*words, "plan", **as_ann, **variables)
        assert code == 0, errors
    callers = {call["caller"] for call in remote_control.calls(cloud, since)}
    assert callers == {ANN.partition(":")[2], ready.email}, "Ann only gets the token"


async def test_records_name_the_account_and_the_user(
    ready: Pipeline, cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready.bench.provision()
    path = f"projects/{ready.project}"
    await asyncio.to_thread(grant, cloud, path, CREATOR, ANN)
    await asyncio.to_thread(grant, cloud, path, "roles/owner", f"serviceAccount:{ready.email}")
    monkeypatch.setenv("TPUCTL_LOCAL_CALLER", ANN)
    monkeypatch.setenv(VARIABLE, ready.email)
    stack = ready.bench.reopen()
    (ready.bench.folder / "job.py").write_text("print(1)\n")
    submission = stack.submission(ready.bench.folder / "job.py", check=False)
    (record,) = await append_jobs(stack.context, submission, (), Queued())
    assert (record.submitted_by, record.submitted_as) == (user_at_host(), ready.email)
    (listed,) = ready.bench.answer("jobs")["data"]
    for job in (listed, ready.bench.answer("jobs", "show", record.id)["data"]):
        assert (job["submitted_by"], job["submitted_as"]) == (user_at_host(), ready.email)
    actor = f"{user_at_host()} as {ready.email}"
    code, printed, errors = ready.bench.type("jobs", "show", record.id)
    assert (code, actor in " ".join(printed.split())) == (0, True), errors
    assert ready.bench.type("stop", record.id)[0] in (0, EXIT_STOPPED)
    request = json.loads(await stack.store.get_bytes(record.stop_name))
    assert request["by"] == actor


@pytest.mark.parametrize("account", ["ann@example.com", "robot", "a b@c.gserviceaccount.com"])
def test_invalid_account_is_refused_at_once(ready: Pipeline, account: str) -> None:
    code, _, errors = ready.bench.type(OPTION, account, "plan")
    assert code == 2
    assert "is not the email address of a service account" in errors


def test_hints_repeat_the_option() -> None:
    state = State(cloud=CloudName.google, impersonated="a@b.iam.gserviceaccount.com")
    assert state.as_typed("    tpuctl up") == f"    tpuctl {OPTION} a@b.iam.gserviceaccount.com up"


def test_google_gets_impersonated_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.auth import impersonated_credentials
    from google.auth.credentials import AnonymousCredentials

    source = AnonymousCredentials()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(google.auth, "default", lambda scopes: (source, ""))
    account = "robot@my-project.iam.gserviceaccount.com"
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    credentials = Cloud(Endpoint("google", impersonate=account), "my-project").credentials
    assert isinstance(credentials, impersonated_credentials.Credentials)
    assert credentials.service_account_email == account
