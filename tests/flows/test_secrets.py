"""A job's secrets reach only its script; the machines' account can read no other secrets."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.callers import Member, grant
from tests.support.projects import Bench, Project
from tests.support.secret_manager import ACCESSOR, Secrets
from tests.support.stack_jobs import displayed_log, write_script
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, NotFound
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event
from tpuctl.model.jobs.job import WorkerRecord

MakeStack = Callable[..., Tpuctl]
HERE, THERE = "hush-from-the-laptop", "hush-from-secret-manager"
# Prints hashes of the secrets and the modes of their files, then kills its supervisor.
REPORT_SECRETS = """
import hashlib, os, subprocess
for name in ("HERE", "THERE"):
    print(name, hashlib.sha256(os.environ[name].encode()).hexdigest())
for name in ("secrets.json", "secret_values.json"):
    path = os.path.expanduser(f"~/.tpuctl/jobs/{os.environ['TPUCTL_JOB']}/1/{name}")
    print(name, oct(os.stat(path).st_mode & 0o777))
print(os.environ["HERE"] in subprocess.check_output(["ps", "-eo", "args"]).decode(), flush=True)
with open(f"/proc/{os.getppid()}/stat") as stat:  # kill the supervisor: another one adopts the job
    os.kill(int(stat.read().rpartition(")")[2].split()[1]), 9)
"""


@pytest.fixture
async def stack(
    make_stack: MakeStack, local_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Tpuctl]:
    """A stack whose jobs have a secret of each kind."""
    secrets = Secrets(local_cloud, "local-project")
    await asyncio.to_thread(secrets.enable)
    await asyncio.to_thread(secrets.create, "there", THERE.encode())
    monkeypatch.setenv("LAPTOP", HERE)
    secret_stack = make_stack(extra="job: {secrets: {HERE: 'env:LAPTOP', THERE: 'secret:there'}}\n")
    await secret_stack.up()
    yield secret_stack
    await secret_stack.down(delete_bucket=True)


async def on_worker(stack: Tpuctl, *command: str) -> str:
    async with stack.connections() as transports:
        return (await transports[0].run(list(command))).stdout.decode()


async def test_secrets_reach_only_the_script(stack: Tpuctl, events: list[Event]) -> None:
    record = await stack.submit(write_script(stack, REPORT_SECRETS))
    events.clear()
    assert await stack.follow(record) == 0, displayed_log(events)
    hashes = [hashlib.sha256(value.encode()).hexdigest() for value in (HERE, THERE)]
    assert displayed_log(events).splitlines() == [
        f"HERE {hashes[0]}",
        f"THERE {hashes[1]}",
        "secrets.json 0o600",
        "secret_values.json 0o600",
        "False",
    ]
    assert record.secrets == {
        "HERE": "env:LAPTOP",
        "THERE": "projects/local-project/secrets/there/versions/latest",
    }
    # Not in the bucket, on the machine, or in events.
    for entry in await stack.store.list(""):
        assert b"hush-" not in await stack.store.get_bytes(entry.name), entry.name
    assert await on_worker(stack, "grep", "-rl", "hush-", ".") == ""
    assert "hush-" not in repr(events)
    assert "hush-" not in repr(record)


async def test_unreadable_secrets_fail_before_start(stack: Tpuctl, local_cloud: LocalCloud) -> None:
    secrets = Secrets(local_cloud, "local-project")
    job = write_script(stack, "print('never')\n")

    async def check_rejected(kind: type[Exception], text: str, **more: str) -> None:
        with pytest.raises(kind, match=text):
            await stack.start(stack.submission(job, secrets=more))

    await check_rejected(NotFound, "no projects/local-project/secrets/absent", X="secret:absent")
    await check_rejected(NotFound, "no version 7 of projects/", X="secret:there@7")
    await asyncio.to_thread(secrets.create, "old")
    disable = "/v1/projects/local-project/secrets/old/versions/1:disable"
    await asyncio.to_thread(secrets.owner.send_ok, "POST", disable, json={})
    await check_rejected(Conflict, "version 1 of .*/old is disabled", X="secret:old")
    assert await stack.jobs() == []


async def test_account_without_secret_access_fails_job(
    stack: Tpuctl, local_cloud: LocalCloud, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpuctl.resources.access.secret_grants.IAM_PROPAGATION_SECONDS", 0.0)
    await asyncio.to_thread(Secrets(local_cloud, "local-project").create, "closed")
    submission = stack.submission(
        write_script(stack, "print('never')\n"), secrets={"X": "secret:closed"}
    )
    record = await stack.start(submission)
    events.clear()
    assert await stack.follow(record) == 1
    assert "the machine's account may not read it: Permission " in displayed_log(events)
    assert "never" not in displayed_log(events).splitlines()
    ended = WorkerRecord.model_validate_json(await stack.store.get_bytes(record.record_name(0)))
    assert (ended.state, ended.cause) == ("failed", "secrets")
    assert await on_worker(stack, "grep", "-rl", "hush-", ".") == ""


def bench_of(project: Project, secrets: str = "{T: 'secret:token'}") -> Bench:
    return project.stack(extra=f"job: {{secrets: {secrets}}}")


async def create_secrets(project: Project, cloud: LocalCloud, *names: str) -> Secrets:
    """Create the project with these secrets."""
    await project.stack(name="first").provision()
    secrets = Secrets(cloud, project.id)
    await asyncio.to_thread(secrets.enable)
    for name in names:
        await asyncio.to_thread(secrets.create, name)
    return secrets


async def test_up_grants_access_to_secrets_in_stack_file(
    project: Project, null_cloud: LocalCloud
) -> None:
    secrets = await create_secrets(project, null_cloud, "token", "other")
    ann_member = "user:ann@local-cloud.invalid"
    await asyncio.to_thread(
        secrets.owner.send_ok,
        "POST",
        f"/v1/projects/{project.id}/secrets/token:setIamPolicy",
        json={"policy": {"bindings": [{"role": ACCESSOR, "members": [ann_member]}]}},
    )
    bench = bench_of(project)
    change = (await bench.stack.plan()).plan.change("secret/token")
    assert (change.action.value, change.fields) == ("update", (ACCESSOR,))
    await bench.provision()
    account = f"serviceAccount:{bench.stack.stack.service_account}"
    assert sorted(secrets.readers("token")) == sorted([ann_member, account])
    assert secrets.readers("other") == []
    assert (await bench.reopen().plan()).plan.is_empty

    # The file now names another secret: access to the first is revoked.
    text = bench.stack.stack_file.read_text("utf-8").replace("secret:token", "secret:other")
    bench.stack.stack_file.write_text(text, "utf-8")
    again = Bench(bench.reopen(), bench.events)
    await again.provision()
    assert (secrets.readers("token"), secrets.readers("other")) == ([ann_member], [account])
    assert (await bench.reopen().plan()).plan.is_empty

    # As if local state were lost: only the stack's record has the grant.
    names = ("--stack", again.stack.stack.name, "--project", project.id)
    code, _, stderr = await asyncio.to_thread(
        bench.type, "down", "--yes", *names, folder=bench.folder.parent
    )
    assert code == 0, stderr
    assert (secrets.readers("token"), secrets.readers("other")) == ([ann_member], [])


async def test_missing_secret_fails_up_before_changes(
    project: Project, null_cloud: LocalCloud
) -> None:
    await create_secrets(project, null_cloud)
    bench = bench_of(project)
    code, out, stderr = await asyncio.to_thread(bench.type, "up", "--yes")
    assert (code, out) == (1, ""), stderr
    assert "error: Secret not found" in stderr
    assert f"gcloud secrets create token --project={project.id}" in stderr
    assert (await bench.reopen().status()).inventory == ()


async def test_missing_permission_to_grant_secrets_is_reported(
    project: Project, null_cloud: LocalCloud
) -> None:
    await create_secrets(project, null_cloud, "token")
    ann = await asyncio.to_thread(Member, null_cloud, "ann")
    await asyncio.to_thread(grant, null_cloud, f"projects/{project.id}", "roles/editor", ann.name)
    bench = bench_of(project)
    env = {"TPUCTL_LOCAL_CALLER": ann.name}
    code, _, stderr = await asyncio.to_thread(lambda: bench.type("plan", **env))
    assert code == 77, stderr
    assert "roles/secretmanager.admin on project" in stderr
    assert "secretmanager.secrets.setIamPolicy" in stderr
    await asyncio.to_thread(
        grant, null_cloud, f"projects/{project.id}", "roles/secretmanager.admin", ann.name
    )
    _, _, stderr = await asyncio.to_thread(lambda: bench.type("plan", **env))
    assert "secretmanager" not in stderr
