"""A company's proxy and certificates, on machines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.company_network import HOOKS, HOST, CompanyNetwork, company_network
from tests.support.controllers import on_controller
from tests.support.package_index import sha256
from tests.support.polling import async_until
from tests.support.secret_manager import Secrets
from tests.support.stack_jobs import displayed_log
from tests.support.wheels import make_wheel
from tpuctl.api import Tpuctl
from tpuctl.jobs.shipped.machine.network_variables import BUNDLE
from tpuctl.jobs.wheel import Wheel
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event

pytestmark = pytest.mark.long

# Reads the bucket with the job's own variables, which lead to Google without the proxy.
SCRIPT = """
import json, os, urllib.request
import small_library
address = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/service-accounts"
headers = {"Metadata-Flavor": "Google"}
request = urllib.request.Request(f"{address}/default/token", headers=headers)
token = json.load(urllib.request.urlopen(request))["access_token"]
url = f"https://storage.googleapis.com/storage/v1/b/{os.environ['TPUCTL_BUCKET']}"
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
bucket = json.load(urllib.request.urlopen(request))["name"]
print(json.dumps({"version": small_library.__version__, "bucket": bucket, **os.environ}))
"""


@pytest.fixture
def company(tmp_path: Path) -> Iterator[CompanyNetwork]:
    make_wheel(tmp_path / "index", "small-library", "3.0")
    with company_network(tmp_path / "index") as network:
        yield network


async def test_packages_come_through_proxy_and_are_trusted_with_ca(
    make_stack: Callable[..., Tpuctl], events: list[Event], company: CompanyNetwork
) -> None:
    settings = {"proxy": company.proxy, "no_proxy": [".lan.invalid"], "ca": "company-ca.pem"}
    path = make_stack(
        extra=f"network: {json.dumps({**settings, 'ssh': 'iap'})}\n"
        f"job: {{env: {{UV_DEFAULT_INDEX: '{company.index_url}', UV_HTTP_RETRIES: '0'}}}}\n"
    ).stack.path
    folder = path.parent
    (folder / "company-ca.pem").write_text(f"Example Corp.\n{company.certificates}")
    (folder / "requirements.txt").write_text("small-library\n")
    (folder / "job.py").write_text(SCRIPT)
    stack = Tpuctl(path, cloud="local", emit=events.append)
    assert await stack.run(folder / "job.py", up=True) == 0, displayed_log(events)
    (line,) = [line for line in displayed_log(events).splitlines() if line.startswith("{")]
    job = json.loads(line)
    assert (job["version"], job["bucket"]) == ("3.0", stack.stack.bucket)
    assert {*company.targets} == {f"{HOST}:443"}
    assert job["NO_PROXY"] == job["no_proxy"]
    assert {".lan.invalid", "metadata.google.internal"} <= {*job["no_proxy"].split(",")}
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"):
        assert job[name].endswith("/ca-certificates.pem"), name

    path.write_text(path.read_text("utf-8").replace(', "ca": "company-ca.pem"', ""), "utf-8")
    events.clear()
    without = Tpuctl(path, cloud="local", emit=events.append)
    (folder / "requirements.txt").write_text("small-library<4\n")
    assert await without.run(folder / "job.py") == 1
    assert f"{HOST}" in displayed_log(events)
    assert "set network.ca" in displayed_log(events)
    await without.down(delete_bucket=True)


async def test_controller_installs_and_notifies_through_proxy(
    make_stack: Callable[..., Tpuctl],
    local_cloud: LocalCloud,
    company: CompanyNetwork,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It installs a tpuctl that is small, but needs a package."""
    (package,) = company.index.folder.glob("*.whl")
    url = f"https://{HOST}/files/{package.name}"
    files = {"tpuctl/__init__.py": "", "tpuctl/__main__.py": "import small_library as main\n"}
    files["tpuctl/runtime.lock"] = f"small-library @ {url} --hash=sha256:{sha256(package)}\n"
    wheel = Wheel("tpuctl", "9.8", {name: text.encode() for name, text in files.items()})
    monkeypatch.setattr("tpuctl.flows.machines.handover.controller_wheel", lambda: wheel)
    secrets = Secrets(local_cloud, "local-project")
    await asyncio.to_thread(secrets.enable)
    await asyncio.to_thread(secrets.create, "company", company.webhook_url.encode())
    network = {"proxy": company.proxy, "ca": company.certificates, "ssh": "iap"}
    stack = make_stack(
        extra=f"network: {json.dumps(network)}\ncontroller: {{}}\nnotify: secret:company\n"
    )
    await stack.up()
    try:
        await async_until(lambda: bool(company.receiver.bodies), "the notification")
        async with on_controller(stack) as transport:
            python = f".tpuctl/programs/{wheel.digest}/environment/bin/python"
            imported = await transport.run([python, "-c", "import small_library, tpuctl"])
            trusted = await transport.run(["cat", f"../root/.tpuctl/watchdog/bell/{BUNDLE}"])
    finally:
        await stack.down(delete_bucket=True)
    assert imported.exit_code == 0, imported.stderr
    assert [event["event"] for event in company.receiver.events] == ["granted"]
    assert {*company.targets} == {f"{HOST}:443", f"{HOOKS}:443"}
    assert trusted.stdout.decode().endswith(company.certificates), "its watchdog sends, too"
