"""The metadata server, as used by machines and Google's libraries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from google.auth import jwt

from tests.support.machine_specs import worker_spec
from tpuctl.emulator.machines.interface import Endpoint, MachineSpec
from tpuctl.emulator.machines.servers.identity_tokens import certificates_for
from tpuctl.emulator.machines.servers.metadata_tree import metadata_tree

FLAVOR = {"Metadata-Flavor": "Google"}


class Reader:
    def __init__(self, session: aiohttp.ClientSession, root: str) -> None:
        self._session = session
        self.root = root

    async def fetch(
        self, path: str, *, method: str = "GET", headers: Any = FLAVOR, data: str | None = None
    ) -> tuple[int, str, Any]:
        url = f"http://{self.root}{path}"
        async with self._session.request(
            method, url, headers=headers, data=data, allow_redirects=False
        ) as answer:
            return answer.status, await answer.text(), answer.headers

    async def value(self, path: str) -> str:
        status, text, headers = await self.fetch(f"/computeMetadata/v1/{path}")
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
    async with aiohttp.ClientSession(trust_env=False) as session:
        yield session


async def test_metadata_flavor_header_is_required(lab: Any, session: aiohttp.ClientSession) -> None:
    await lab.boot()
    reader = await reader_of(lab, session)
    path = "/computeMetadata/v1/instance/zone"
    status, page, headers = await reader.fetch(path, headers={})
    assert status == 403
    assert headers["Content-Type"].startswith("text/html")
    assert "Missing Metadata-Flavor:Google header." in page
    assert f"<code>{path}</code>" in page
    assert (await reader.fetch(path, headers=FLAVOR | {"X-Forwarded-For": "1.2.3.4"}))[0] == 403
    # A web page with DNS rebinding.
    for name in ("evil.example", "evil.example:80", "metadata.google.internal.evil.example"):
        assert (await reader.fetch(path, headers=FLAVOR | {"Host": name}))[0] == 403
    for name in ("metadata.google.internal", "metadata:80", "169.254.169.254"):
        assert (await reader.fetch(path, headers=FLAVOR | {"Host": name}))[0] == 200
    assert (await reader.fetch(path))[0] == 200
    status, page, headers = await reader.fetch("/computeMetadata/v1/instance/<nothing>")
    assert (status, headers["Metadata-Flavor"]) == (404, "Google")
    assert "&lt;nothing&gt;" in page or "%3Cnothing%3E" in page
    assert (await reader.value("universe/universe-domain")) == "googleapis.com"
    assert (await reader.fetch("/elsewhere"))[0] == 404
    status, _, headers = await reader.fetch("/computeMetadata/v1/instance/attributes")
    assert (status, headers["Location"]) == (301, "/computeMetadata/v1/instance/attributes/")


async def test_tpu_vm_metadata(lab: Any, session: aiohttp.ClientSession) -> None:
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
    # JAX takes these where it finds no chips but is told to run as on a TPU VM.
    command = "echo $JAX_FORCE_TPU_INIT $JAX_PLATFORMS $TPU_WORKER_ID $TPU_WORKER_HOSTNAMES"
    addresses = ",".join(endpoint.address for endpoint in spec.endpoints)
    assert (await lab.run(command)).out.split() == ["1", "cpu", "0", addresses]


# `tpu-env` of a v4-256, from test_tpu.py in penghao-wu/cambrian, and of a v6e-1, from a Terraform
# file that the console wrote (agents' images and switches left out of both).
PRINTED = {
    "v4-256": {
        "ACCELERATOR_TYPE": "v4-256",
        "ALT": "false",
        "CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "CONSUMER_PROJECT_ID": "lab",
        "HOST_BOUNDS": "2,2,8",
        "NODE_ID": "bert",
        "TOPOLOGY": "4x4x8",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "TPU_PROCESS_BOUNDS": "2,2,8",
        "TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434",
        "TPU_TOPOLOGY_ALT": "false",
        "TPU_TOPOLOGY_WRAP": "true,true,true",
        "TYPE": "V4",
        "WORKER_ID": "0",
        "WRAP": "true,true,true",
        "ZONE": "us-central2-b",
    },
    "v6e-1": {
        "ALT": "false",
        "CHIPS_PER_HOST_BOUNDS": "1,1,1",
        "HOST_BOUNDS": "1,1,1",
        "TOPOLOGY": "1x1",
        "WRAP": "false,false,false",
    },
    # torch_xla/_internal/tpu.py has the bounds of v2 and v3 in a separate table.
    "v3-64": {"CHIPS_PER_HOST_BOUNDS": "2,2,1", "HOST_BOUNDS": "2,4,1"},
    "v2-512": {"CHIPS_PER_HOST_BOUNDS": "2,2,1", "HOST_BOUNDS": "8,8,1"},
}


def spec_of(type_name: str) -> MachineSpec:
    return worker_spec(
        Endpoint("127.0.0.1"),
        zone="us-central2-b",
        accelerator_type=type_name,
        service_account="",
        access_token="",
    )


@pytest.mark.parametrize("type_name", list(PRINTED))
def test_slice_topology_matches_real_machines(type_name: str) -> None:
    tree: Any = metadata_tree(spec_of(type_name), "host", {}, {})
    lines = tree["instance"]["attributes"]["tpu-env"].splitlines()
    line = {
        name: value.strip("'")
        for name, _, value in (variables.partition(": ") for variables in lines)
    }
    expected = PRINTED[type_name]
    assert {name: line.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("type_name", "machine_type"),
    [  # AI-Hypercomputer/xpk, system_characteristics.py
        ("v4-256", "ct4p-hightpu-4t"),
        ("v5litepod-8", "ct5lp-hightpu-8t"),
        ("v5litepod-16", "ct5lp-hightpu-4t"),
        ("v5p-128", "ct5p-hightpu-4t"),
        ("v6e-1", "ct6e-standard-1t"),
        ("v6e-256", "ct6e-standard-4t"),
    ],
)
def test_machine_type_by_generation(type_name: str, machine_type: str) -> None:
    tree: Any = metadata_tree(spec_of(type_name), "host", {}, {})
    assert tree["instance"]["machine-type"] == f"projects/4711/machineTypes/{machine_type}"


async def test_folders_and_recursive_requests(lab: Any, session: aiohttp.ClientSession) -> None:
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


async def test_service_account_and_token(lab: Any, session: aiohttp.ClientSession) -> None:
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
    absent = "/computeMetadata/v1/instance/service-accounts/absent/token"
    assert (await reader.fetch(absent))[0] == 404


async def test_wait_for_change(lab: Any, session: aiohttp.ClientSession) -> None:
    await lab.boot(step="one")
    reader = await reader_of(lab, session)
    path = "/computeMetadata/v1/instance/preempted?wait_for_change=true"
    waiting = asyncio.create_task(reader.fetch(path))
    _, _, headers = await reader.fetch("/computeMetadata/v1/instance/preempted")
    lab.host.set_event(lab.name, "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done  # something else changed
    lab.host.set_event(lab.name, "preempted", "TRUE")
    status, text, after = await asyncio.wait_for(waiting, 10)
    assert (status, text) == (200, "TRUE")
    assert after["ETag"] != headers["ETag"]
    # A client that missed the change gets it immediately.
    late = await asyncio.wait_for(reader.fetch(f"{path}&last_etag={headers['ETag']}"), 10)
    assert late[1] == "TRUE"
    # The timeout is respected.
    last = f"{path}&last_etag={after['ETag']}&timeout_sec=0"
    assert (await asyncio.wait_for(reader.fetch(last), 10))[1] == "TRUE"
    attributes = "/computeMetadata/v1/instance/attributes/step?wait_for_change=true"
    waiting = asyncio.create_task(reader.fetch(attributes))
    await reader.fetch("/")
    lab.change(step="two")
    assert (await asyncio.wait_for(waiting, 10))[1] == "two"


@pytest.mark.timeout(60)
async def test_shutdown_ends_wait_for_change(lab: Any, session: aiohttp.ClientSession) -> None:
    await lab.boot()
    reader = await reader_of(lab, session)
    path = "/computeMetadata/v1/instance/preempted?wait_for_change=true"
    waiting = asyncio.create_task(reader.fetch(path))
    await reader.fetch("/")
    await asyncio.sleep(0.1)
    await lab.host.shut_down(lab.name)
    with contextlib.suppress(aiohttp.ClientError):
        await waiting


async def test_machine_writes_guest_attributes(lab: Any) -> None:
    await lab.boot()
    base = "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/guest-attributes"
    fetch_command = f"curl -sS -f -H Metadata-Flavor:Google {base}"
    done = await lab.run(
        f"{fetch_command}/job/state -X PUT -d running && {fetch_command}/job/state"
    )
    assert (done.out, done.status) == ("running", 0)
    written = lab.host.guest_attributes(lab.name)
    assert written["job"] == {"state": "running"}
    assert set(written["hostkeys"]) == {"ssh-ed25519"}
    await lab.run(f"{fetch_command}/job/state -X DELETE")
    assert lab.host.guest_attributes(lab.name)["job"] == {}


async def test_identity_token_is_verifiable(lab: Any, session: aiohttp.ClientSession) -> None:
    spec = await lab.boot()
    reader = await reader_of(lab, session)
    path = "instance/service-accounts/default/identity"
    status, text, _ = await reader.fetch(f"/computeMetadata/v1/{path}")
    assert (status, text) == (400, "non-empty audience parameter required\n")
    absent = path.replace("default", "absent") + "?audience=x"
    assert (await reader.fetch(f"/computeMetadata/v1/{absent}"))[0] == 404
    audience = "https://service.example.com"
    certificates = certificates_for("/oauth2/v1/certs", lab.home)
    short = await reader.value(f"{path}?audience={audience}")
    claims = jwt.decode(short, certificates, audience=audience)
    assert claims["iss"] == "https://accounts.google.com"
    assert "google" not in claims
    full = await reader.value(f"{path}?audience={audience}&format=full")
    claims = jwt.decode(full, certificates, audience=audience)
    assert claims["email"] == spec.service_account
    engine = claims["google"]["compute_engine"]
    assert (engine["project_id"], engine["zone"]) == ("lab", "europe-west4-a")
    assert engine["instance_id"] == await reader.value("instance/id")
    with pytest.raises(ValueError, match="wrong audience"):
        jwt.decode(full, certificates, audience="https://other.example.com")
    # google-auth requests it automatically on a machine.
    assert await lab_identity(lab, audience) == spec.service_account


IDENTITY = """
import sys
import google.auth.transport.requests as transport
from google.auth import jwt
from google.auth.compute_engine import IDTokenCredentials
request = transport.Request()
credentials = IDTokenCredentials(request, sys.argv[1], use_metadata_identity_endpoint=True)
credentials.refresh(request)
print(jwt.decode(credentials.token, verify=False)["email"], credentials.expired)
"""


async def lab_identity(lab: Any, audience: str) -> str:
    out = await run_here(lab, IDENTITY, audience)
    email, is_expired = out.split()
    assert is_expired == "False"
    return email


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


async def run_here(lab: Any, program: str, *arguments: str) -> str:
    """Run a program with the tests' packages and the machine's environment; return its output."""
    environment = dict(
        line.split("=", 1)
        for line in (await lab.run("env")).out.splitlines()
        if line.startswith(("GCE_", "no_proxy", "NO_PROXY", "https_proxy", "HTTPS_PROXY"))
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        env=environment | {"PATH": os.environ["PATH"], "HOME": "/dev/null"},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return out.decode()


async def test_google_auth_finds_machine_credentials(lab: Any) -> None:
    await lab.boot()
    assert (await run_here(lab, GOOGLE_AUTH)).splitlines() == [
        "True lab",
        "token-of-the-job job@lab.iam.gserviceaccount.com False",
    ]
