"""The metadata server as machines and Google's libraries read it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

FLAVOR = {"Metadata-Flavor": "Google"}


class Reader:
    def __init__(self, session: aiohttp.ClientSession, root: str) -> None:
        self._session = session
        self.root = root

    async def ask(
        self, path: str, *, method: str = "GET", headers: Any = FLAVOR, data: str | None = None
    ) -> tuple[int, str, Any]:
        url = f"http://{self.root}{path}"
        async with self._session.request(
            method, url, headers=headers, data=data, allow_redirects=False
        ) as answer:
            return answer.status, await answer.text(), answer.headers

    async def value(self, path: str) -> str:
        status, text, headers = await self.ask(f"/computeMetadata/v1/{path}")
        assert status == 200, (path, status)
        assert headers["Metadata-Flavor"] == "Google"
        return text


async def reader_of(lab: Any, session: aiohttp.ClientSession, worker: int = 0) -> Reader:
    root = (await lab.run("echo $GCE_METADATA_HOST")).out.strip()
    address = lab.specs[worker].endpoint.address
    assert root.startswith(address + ":") or worker
    return Reader(session, root)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(trust_env=False) as one:
        yield one


async def test_the_header_is_demanded(lab: Any, session: aiohttp.ClientSession) -> None:
    await lab.boot()
    reader = await reader_of(lab, session)
    path = "/computeMetadata/v1/instance/zone"
    assert (await reader.ask(path, headers={}))[0] == 403
    assert (await reader.ask(path, headers=FLAVOR | {"X-Forwarded-For": "1.2.3.4"}))[0] == 403
    assert (await reader.ask(path))[0] == 200
    assert (await reader.ask("/computeMetadata/v1/instance/nothing"))[0] == 404
    assert (await reader.ask("/elsewhere"))[0] == 404
    status, _, headers = await reader.ask("/computeMetadata/v1/instance/attributes")
    assert (status, headers["Location"]) == (301, "/computeMetadata/v1/instance/attributes/")


async def test_what_a_tpu_vm_knows_of_itself(lab: Any, session: aiohttp.ClientSession) -> None:
    spec = await lab.boot(workers=4, color="green")
    reader = await reader_of(lab, session)
    assert await reader.value("project/project-id") == "lab"
    assert await reader.value("project/numeric-project-id") == "4711"
    assert await reader.value("instance/zone") == "projects/4711/zones/europe-west4-a"
    assert await reader.value("instance/preempted") == "FALSE"
    assert await reader.value("instance/maintenance-event") == "NONE"
    assert await reader.value("instance/network-interfaces/0/ip") == spec.endpoint.address
    assert await reader.value("instance/attributes/color") == "green"
    assert await reader.value("instance/attributes/agent-worker-number") == "0"
    assert await reader.value("instance/attributes/accelerator-type") == "v3-32"
    # JAX takes the third field of each entry.
    workers = (await reader.value("instance/attributes/worker-network-endpoints")).split(",")
    assert [entry.split(":")[2] for entry in workers] == [e.address for e in spec.endpoints]
    # PyTorch/XLA reads KEY: 'value' lines.
    lines = (await reader.value("instance/attributes/tpu-env")).splitlines()
    values = dict(line.split(": ", 1) for line in lines)
    assert values["ACCELERATOR_TYPE"] == "'v3-32'"
    assert values["WORKER_ID"] == "'0'"
    assert values["ZONE"] == "'europe-west4-a'"
    name = await reader.value("instance/name")
    assert (await lab.run("hostname")).out.strip() in (name, os.uname().nodename)
    assert (await reader.value("instance/hostname")).startswith(name + ".")


async def test_folders_and_whole_trees(lab: Any, session: aiohttp.ClientSession) -> None:
    await lab.boot(Some_Key="a value")
    reader = await reader_of(lab, session)
    listed = (await reader.value("instance/")).splitlines()
    assert {"attributes/", "service-accounts/", "zone"} <= set(listed)
    tree = json.loads(await reader.value("?recursive=true"))
    assert tree["project"] == {"attributes": {}, "numericProjectId": 4711, "projectId": "lab"}
    assert tree["instance"]["attributes"]["Some-Key"] == "a value"
    assert tree["instance"]["maintenanceEvent"] == "NONE"
    assert tree["instance"]["networkInterfaces"][0]["ip"] == lab.specs[0].endpoint.address
    flat = (await reader.value("instance/attributes/?recursive=true&alt=text")).splitlines()
    assert "Some-Key a value" in flat
    assert await reader.value("instance/preempted?alt=json") == '"FALSE"'


async def test_the_account_and_its_token(lab: Any, session: aiohttp.ClientSession) -> None:
    await lab.boot()
    reader = await reader_of(lab, session)
    email = "job@lab.iam.gserviceaccount.com"
    listed = (await reader.value("instance/service-accounts/")).splitlines()
    assert listed == ["default/", f"{email}/"]
    for name in ("default", email):
        base = f"instance/service-accounts/{name}"
        assert await reader.value(f"{base}/email") == email
        token = json.loads(await reader.value(f"{base}/token"))
        assert token["access_token"] == "token-of-the-job"
        assert token["token_type"] == "Bearer"
        assert token["expires_in"] > 0
        whole = json.loads(await reader.value(f"{base}/?recursive=true"))
        assert whole["email"] == email
        assert "cloud-platform" in whole["scopes"][0]
    nobody = "/computeMetadata/v1/instance/service-accounts/nobody/token"
    assert (await reader.ask(nobody))[0] == 404


async def test_waiting_for_a_change(lab: Any, session: aiohttp.ClientSession) -> None:
    await lab.boot(step="one")
    reader = await reader_of(lab, session)
    path = "/computeMetadata/v1/instance/preempted?wait_for_change=true"
    waiting = asyncio.create_task(reader.ask(path))
    _, _, headers = await reader.ask("/computeMetadata/v1/instance/preempted")
    lab.host.set_event(lab.name, "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done  # something else changed
    lab.host.set_event(lab.name, "preempted", "TRUE")
    status, text, after = await asyncio.wait_for(waiting, 10)
    assert (status, text) == (200, "TRUE")
    assert after["ETag"] != headers["ETag"]
    # Somebody who missed the change is told at once.
    late = await asyncio.wait_for(reader.ask(f"{path}&last_etag={headers['ETag']}"), 10)
    assert late[1] == "TRUE"
    # And nobody waits longer than they want.
    last = f"{path}&last_etag={after['ETag']}&timeout_sec=0"
    assert (await asyncio.wait_for(reader.ask(last), 10))[1] == "TRUE"
    attributes = "/computeMetadata/v1/instance/attributes/step?wait_for_change=true"
    waiting = asyncio.create_task(reader.ask(attributes))
    await reader.ask("/")
    lab.change(step="two")
    assert (await asyncio.wait_for(waiting, 10))[1] == "two"


async def test_guest_attributes_are_written_on_the_machine(lab: Any) -> None:
    await lab.boot()
    base = "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/guest-attributes"
    ask = f"curl -sS -f -H Metadata-Flavor:Google {base}"
    done = await lab.run(f"{ask}/job/state -X PUT -d running && {ask}/job/state")
    assert (done.out, done.status) == ("running", 0)
    written = lab.host.guest_attributes(lab.name)
    assert written["job"] == {"state": "running"}
    assert set(written["hostkeys"]) == {"ssh-ed25519"}
    await lab.run(f"{ask}/job/state -X DELETE")
    assert lab.host.guest_attributes(lab.name)["job"] == {}


GOOGLE_AUTH = """
import google.auth.transport.requests as transport
from google.auth import compute_engine
from google.auth.compute_engine import _metadata
request = transport.Request()
print(_metadata.ping(request), _metadata.get_project_id(request))
credentials = compute_engine.Credentials()
credentials.refresh(request)
print(credentials.token, credentials.service_account_email, credentials.expired)
"""


async def test_googles_own_library_finds_its_credentials(lab: Any) -> None:
    await lab.boot()
    environment = dict(
        line.split("=", 1)
        for line in (await lab.run("env")).out.splitlines()
        if line.startswith(("GCE_", "no_proxy", "NO_PROXY", "https_proxy", "HTTPS_PROXY"))
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", GOOGLE_AUTH),
        env=environment | {"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert out.decode().splitlines() == [
        "True lab",
        "token-of-the-job job@lab.iam.gserviceaccount.com False",
    ]
