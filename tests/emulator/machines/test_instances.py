"""A Compute Engine VM, such as a controller: metadata, logins, and access to Google's APIs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import asyncssh
import pytest

from tpuctl.emulator.machines.interface import MachineError, MachineSpec

NAME = "projects/lab/zones/europe-west4-a/instances/controller"
SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)


async def boot(lab: Any, **fields: Any) -> MachineSpec:
    """Boot an instance that the lab's user can log in to."""
    settings = {"metadata": {"ssh-keys": lab.key_line}} | fields
    spec = MachineSpec(
        name=NAME,
        node_id="controller",
        worker=0,
        endpoints=tuple(await lab.host.reserve([NAME])),
        project="lab",
        project_number=4711,
        zone="europe-west4-a",
        accelerator_type="",
        runtime_version="",
        service_account=settings.pop("service_account", "c@lab.iam.gserviceaccount.com"),
        access_token="token-of-the-controller",
        kind="instance",
        machine_type="n1-highmem-8",
        scopes=SCOPES,
        **settings,
    )
    lab.specs = [spec]
    await lab.host.boot(spec, lambda _: None)
    return spec


async def get_metadata(lab: Any, path: str) -> Any:
    done = await lab.run(
        f'curl -sS -H "Metadata-Flavor: Google" "http://$GCE_METADATA_HOST/computeMetadata/v1/{path}"'
    )
    assert done.status == 0, done.error
    return done.out


async def test_instance_hostname_is_its_name(lab: Any) -> None:
    await boot(lab)
    assert await get_metadata(lab, "instance/name") == "controller"
    hostname = "controller.europe-west4-a.c.lab.internal"
    assert await get_metadata(lab, "instance/hostname") == hostname
    if lab.host.isolation == "user namespaces":
        assert (await lab.run("hostname")).out == "controller\n"
        assert (await lab.run("getent hosts controller")).status == 0


async def test_instance_has_its_own_hostname(lab: Any) -> None:
    """The guest agent sets the first part; the instance's name stays as it is."""
    await boot(lab, hostname="head.lab.example")
    assert await get_metadata(lab, "instance/name") == "controller"
    assert await get_metadata(lab, "instance/hostname") == "head.lab.example"
    if lab.host.isolation == "user namespaces":
        assert (await lab.run("hostname; hostname -f")).out == "head\nhead.lab.example\n"


async def test_instance_has_no_tpu_metadata(lab: Any) -> None:
    metadata = {"ssh-keys": lab.key_line, "tpuctl-stack": "s"}
    await boot(lab, metadata=metadata, project_metadata={"common": "c"})
    tree = json.loads(await get_metadata(lab, "instance/?recursive=true"))
    assert tree["attributes"] == metadata
    assert tree["machineType"] == "projects/4711/machineTypes/n1-highmem-8"
    assert tree["zone"] == "projects/4711/zones/europe-west4-a"
    account = tree["serviceAccounts"]["default"]
    assert account["email"] == "c@lab.iam.gserviceaccount.com"
    assert account["scopes"] == list(SCOPES)
    assert await get_metadata(lab, "project/attributes/common") == "c"
    token = json.loads(await get_metadata(lab, "instance/service-accounts/default/token"))
    assert token["access_token"] == "token-of-the-controller"


async def test_instance_without_service_account_has_no_token(lab: Any) -> None:
    await boot(lab, service_account="")
    assert await get_metadata(lab, "instance/service-accounts/") == "\n"
    answer = await get_metadata(lab, "instance/service-accounts/default/token")
    assert "Error 404 (Not Found)" in answer


async def test_project_keys_are_accepted_unless_blocked(lab: Any) -> None:
    spec = await boot(lab, metadata={}, project_metadata={"ssh-keys": lab.key_line})
    assert (await lab.run("echo in")).out == "in\n"
    blocking = {"block-project-ssh-keys": "TRUE"}
    lab.host.reconfigure(replace(spec, metadata=blocking))
    with pytest.raises(asyncssh.PermissionDenied):
        await lab.run("echo in")
    lab.host.reconfigure(replace(spec, metadata=blocking | {"ssh-keys": lab.key_line}))
    assert (await lab.run("echo in")).out == "in\n"


async def test_project_startup_script_is_the_default(isolated: Any) -> None:
    keys = {"ssh-keys": isolated.key_line}
    await boot(isolated, metadata=keys, project_metadata={"startup-script": "echo p > /tmp/ran"})
    async with asyncio.timeout(30):
        while (done := await isolated.run("cat /tmp/ran")).status != 0:
            await asyncio.sleep(0.05)
    assert done.out == "p\n"


async def test_project_startup_script_requires_isolation(make_lab: Any) -> None:
    plain = await make_lab(namespaces=False)
    with pytest.raises(MachineError, match="startup-script"):
        await boot(plain, project_metadata={"startup-script": "true"})


async def test_instance_image_may_be_plain_python(lab: Any) -> None:
    await boot(lab)
    done = await lab.run("python3 -c 'import tensorflow'")
    assert "ModuleNotFoundError" in done.error


async def test_error_names_missing_image(lab: Any) -> None:
    with pytest.raises(MachineError, match=r"controller \(TensorFlow 2\.4\.1\)"):
        await boot(lab, tensorflow="2.4.1")


# Like the watchdog on a machine: only the standard library, with the machine's token.
STDLIB = """
import json, os, urllib.request
def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return answer.read()
metadata = "http://" + os.environ["GCE_METADATA_HOST"] + "/computeMetadata/v1/instance/"
path = metadata + "service-accounts/default/token"
token = json.loads(get(path, **{"Metadata-Flavor": "Google"}))["access_token"]
for url in URLS:
    print(get(url, Authorization="Bearer " + token).decode())
"""
NODES = "https://tpu.googleapis.com/v2/projects/lab/locations/europe-west4-a/nodes"
DISKS = "https://compute.googleapis.com/compute/v1/projects/lab/zones/europe-west4-a/disks"


async def test_standard_library_calls_google_apis_with_machine_token(
    make_lab: Any, api_server: Any
) -> None:
    lab = await make_lab(api_address=api_server.address)
    await boot(lab)
    program = STDLIB.replace("URLS", repr([NODES, DISKS]))
    done = await lab.run("python3 -I -", input=program.encode())
    assert done.out == "api_server\napi_server\n", done.error
    assert [(request.host, request.path) for request in api_server.requests] == [
        ("tpu.googleapis.com", "/v2/projects/lab/locations/europe-west4-a/nodes"),
        ("compute.googleapis.com", "/compute/v1/projects/lab/zones/europe-west4-a/disks"),
    ]
    tokens = {request.headers["authorization"] for request in api_server.requests}
    assert tokens == {"Bearer token-of-the-controller"}
