"""A company's proxy and certificates, on machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.company_network import HOST, CompanyNetwork, company_network
from tests.support.stack_jobs import displayed_log
from tests.support.wheels import make_wheel
from tpuctl.api import Tpuctl
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
