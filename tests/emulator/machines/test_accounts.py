"""A machine's token belongs to its service account, for the APIs and Google's token endpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import requests

from tests.support.locations import PROJECT, ZONE
from tpuctl.local_cloud import server_process

NODES = f"/v2/projects/{PROJECT}/locations/{ZONE}/nodes"
INSTANCES = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"

# A program on the machine that uses only defaults.
PROGRAM = """
import json, os, urllib.error, urllib.request as u
def read(url, **headers):
    try:
        return u.urlopen(u.Request(url, headers=headers)).read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()
base = "http://" + os.environ["GCE_METADATA_HOST"] + "/computeMetadata/v1/instance/"
def ask(path):
    return read(base + path, **{"Metadata-Flavor": "Google"})
token = json.loads(ask("service-accounts/default/token"))["access_token"]
info = json.loads(read("https://oauth2.googleapis.com/tokeninfo?access_token=" + token))
bucket = "https://storage.googleapis.com/storage/v1/b/somebodys-bucket/o"
refused = json.loads(read(bucket, Authorization="Bearer " + token))
print(json.dumps([ask("service-accounts/default/email"), info["email"], refused["error"]]))
"""


class Cloud:
    def __init__(self, cloud: server_process.LocalCloud) -> None:
        self._url = cloud.url
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Authorization"] = f"Bearer {cloud.token}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.session.request(method, f"{self._url}{path}", json=body, timeout=60)
        assert answer.status_code < 300, (path, answer.status_code, answer.text)
        return answer.json()

    def wait(self, path: str) -> None:
        """Wait until the resource exists and is ready."""
        assert server_process.wait_until(lambda: self._is_ready(path), 60), self.call("GET", path)

    def _is_ready(self, path: str) -> bool:
        answer = self.session.get(f"{self._url}{path}", timeout=60)
        state = answer.json() if answer.ok else {}
        return state.get("state") == "READY" or state.get("status") == "RUNNING"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    home = tmp_path / "local"
    one = Cloud(server_process.start(home, pace="instant"))
    yield one
    one.session.close()
    server_process.stop(home)


async def run_on(address: str, port: int, key: asyncssh.SSHKey) -> Any:
    async with asyncssh.connect(
        address, port, username="anna", client_keys=[key], known_hosts=None, config=None
    ) as connection:
        done = await asyncio.wait_for(connection.run("python3 -", input=PROGRAM), 60)
    assert done.exit_status == 0, done.stderr
    return json.loads(str(done.stdout))


async def test_workers_and_instances_use_their_own_service_account(cloud: Cloud) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    keys = f"anna:{key.export_public_key().decode().strip()}"
    for api in ("tpu", "compute", "iam", "storage"):
        cloud.call("POST", f"/v1/projects/{PROJECT}/services/{api}.googleapis.com:enable", {})
    cloud.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": "somebodys-bucket"})
    emails = {}
    for name in ("slices-account", "instances-account"):
        account = cloud.call("POST", f"/v1/projects/{PROJECT}/serviceAccounts", {"accountId": name})
        emails[name] = account["email"]
    node = {
        "acceleratorType": "v3-32",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "serviceAccount": {"email": emails["slices-account"]},
        "metadata": {"ssh-keys": keys},
        "networkConfig": {"enableExternalIps": True},
    }
    cloud.call("POST", f"{NODES}?nodeId=slice", node)
    image = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
    instance = {
        "name": "own",
        "machineType": f"zones/{ZONE}/machineTypes/n1-standard-1",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": image}}],
        "networkInterfaces": [{"accessConfigs": [{}]}],
        "serviceAccounts": [
            {
                "email": emails["instances-account"],
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ],
        "metadata": {"items": [{"key": "ssh-keys", "value": keys}]},
    }
    cloud.call("POST", INSTANCES, instance)
    await asyncio.gather(
        asyncio.to_thread(cloud.wait, f"{NODES}/slice"),
        asyncio.to_thread(cloud.wait, f"{INSTANCES}/own"),
    )
    account = cloud.call("GET", f"{NODES}/slice")
    port = int(account["metadata"].get("tpuctl-ssh-port", 22))
    for worker in (0, 3):
        address = account["networkEndpoints"][worker]["ipAddress"]
        identity, acting, refusal = await run_on(address, port, key)
        assert (identity, acting) == (emails["slices-account"],) * 2
        assert refusal["code"] == 403
        assert emails["slices-account"] in refusal["message"]
    account = cloud.call("GET", f"{INSTANCES}/own")
    items = {item["key"]: item["value"] for item in account["metadata"]["items"]}
    port = int(items.get("tpuctl-ssh-port", 22))
    identity, acting, refusal = await run_on(
        account["networkInterfaces"][0]["networkIP"], port, key
    )
    assert (identity, acting) == (emails["instances-account"],) * 2
    assert emails["instances-account"] in refusal["message"]
