"""`local env`: a shell's unmodified programs use the local cloud, and other hosts as before."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.forked_cli import forked_tpuctl
from tests.support.gcloud import require_gcloud
from tests.support.locations import PROJECT
from tests.support.subprocesses import run_captured
from tpuctl.emulator.machines.network.certificate_authority import Authority
from tpuctl.local_cloud import server_process
from tpuctl.shell_record import RECORD

ROOT = str(Path(__file__).resolve().parents[2])
# Variables that configure endpoints; not inherited from the environment of the test run.
LEADING = ("proxy", "cloudsdk", "google", "gce_", "storage_", "tpuctl_", "boto", "ca_bundle", "ssl")


class Shell:
    """A user's bash, with a separate home and a few variables."""

    def __init__(self, folder: Path, local_home: Path, program: str = "") -> None:
        """`program` is the shell's `tpuctl`; by default a forked one."""
        self.program = program or forked_tpuctl()
        self.home = folder / "me"
        self.home.mkdir()
        preserved = {
            name: value
            for name, value in os.environ.items()
            if not any(word in name.lower() for word in LEADING)
        }
        self.variables = {
            **preserved,
            "HOME": str(self.home),
            "SHELL": "/bin/bash",
            "PYTHONPATH": ROOT,
            "TPUCTL_LOCAL_HOME": str(local_home),
        }

    def run(
        self, script: str, *, seconds: int = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        begin = f'tpuctl() {{ {self.program} "$@"; }}\n'
        return run_captured(
            ["bash", "--norc", "-c", begin + script],
            env=self.variables | variables,
            cwd=self.home,
            timeout=seconds,
        )

    def output(self, script: str, **options: Any) -> str:
        """The output of a script that must succeed."""
        done = self.run("set -e\n" + script, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pointed(self, script: str, **options: Any) -> str:
        """The same after `eval "$(tpuctl local env)"`."""
        return self.output('eval "$(tpuctl local env)"\n' + script, **options)

    def python(self, program: str, **options: Any) -> list[str]:
        """The lines that a program prints in a shell configured for the local cloud."""
        (self.home / "program.py").write_text(program)
        return self.pointed(f"{sys.executable} -W error program.py", **options).splitlines()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a local cloud with the APIs enabled."""
    folder = tmp_path_factory.mktemp("cloud")
    cloud = server_process.start(folder, pace="instant", ssh="high")
    with requests.Session() as session:
        session.trust_env = False
        for api in ("tpu", "compute", "iam"):
            path = f"/v1/projects/{PROJECT}/services/{api}.googleapis.com:enable"
            authorization = {"Authorization": f"Bearer {cloud.token}"}
            session.post(cloud.url + path, json={}, headers=authorization, timeout=60)
    yield folder
    server_process.stop(folder)


@pytest.fixture
def shell(tmp_path: Path, home: Path) -> Shell:
    return Shell(tmp_path, home)


CLIENTS = """
import google.auth
from google.cloud import compute_v1, iam_admin_v1, resourcemanager_v3, storage, tpu_v2
client = storage.Client()
bucket = client.create_bucket("clients-bucket")
bucket.blob("folder/one").upload_from_string("text")
large = bucket.blob("large", chunk_size=1 << 20)
large.upload_from_string(b"x" * 3_000_000)
print(client.project, bucket.blob("folder/one").download_as_text(), len(large.download_as_bytes()))
blobs = list(client.list_blobs(bucket))
with client.batch():
    for blob in blobs:
        blob.delete()
print(list(client.list_blobs(bucket)), google.auth.default()[1])
parent = "projects/local-project/locations/us-central1-b"
for transport in ("grpc", "rest"):
    found = tpu_v2.TpuClient(transport=transport).list_nodes(parent=parent, timeout=60)
    print(transport, len(list(found)))
where = {"project": "local-project", "zone": "us-central1-b"}
print(compute_v1.ZonesClient().get(**where).name, list(compute_v1.InstancesClient().list(**where)))
print([one.project_id for one in resourcemanager_v3.ProjectsClient().search_projects()])
project = "projects/local-project"
asked = {"name": project, "account_id": "robot-of-mine"}
print(iam_admin_v1.IAMClient().create_service_account(asked).email)
"""


def test_google_clients_work_with_defaults(shell: Shell) -> None:
    assert shell.python(CLIENTS) == [
        "local-project text 3000000",
        "[] local-project",
        "grpc 0",
        "rest 0",
        "us-central1-b []",
        "['local-project']",
        "robot-of-mine@local-project.iam.gserviceaccount.com",
    ]


@pytest.mark.soak
def test_gcloud_and_gsutil_work_without_changing_user_configuration(shell: Shell) -> None:
    require_gcloud()
    user_configuration = shell.home / ".config" / "gcloud" / "configurations" / "config_work"
    user_configuration.parent.mkdir(parents=True)
    user_configuration.write_text("[core]\nproject = company-project\naccount = me@company.com\n")
    (user_configuration.parents[1] / "active_config").write_text("work")
    before = {
        path: path.read_bytes()
        for path in user_configuration.parents[1].rglob("*")
        if path.is_file()
    }
    result = shell.pointed(
        "gcloud storage buckets create gs://gcloud-bucket --format='value(name)'\n"
        "gsutil ls -b gs://gcloud-bucket\n",
        CLOUDSDK_ACTIVE_CONFIG_NAME="work",
        CLOUDSDK_CORE_PROJECT="company-project",
        CLOUDSDK_AUTH_ACCESS_TOKEN_FILE="/nonexistent",
    )
    assert result.splitlines()[-1] == "gs://gcloud-bucket/"
    after = {
        path: path.read_bytes()
        for path in user_configuration.parents[1].rglob("*")
        if path.is_file()
    }
    assert after == before


def variables_of(text: str) -> dict[str, str]:
    found = dict(line.split("=", 1) for line in text.split("\0") if line)
    return {name: value for name, value in found.items() if name not in ("_", "SHLVL")}


def test_environment_is_restored_after_repeated_use(shell: Shell) -> None:
    user_settings = {
        "https_proxy": "http://me:p%20w@proxy.company.com:3128",
        "NO_PROXY": "intranet.company.com,.googleapis.com",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/it's mine.json",
        "CLOUDSDK_CORE_PROJECT": "company-project",
        "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT": "robot@company.com",
        "SSL_CERT_FILE": "",
    }
    twice = 'eval "$(tpuctl local env)"; export GOOGLE_CLOUD_PROJECT=other\n' * 2
    text = shell.output(
        f'env -0 > before\n{twice}env -0 > between\neval "$(tpuctl local env --unset)"\nenv -0',
        **user_settings,
    )
    before = variables_of((shell.home / "before").read_text())
    between = variables_of((shell.home / "between").read_text())
    assert variables_of(text) == before
    assert {name: between.get(name) for name in user_settings} != user_settings
    assert set(json.loads(between[RECORD])) >= {
        *user_settings,
        "STORAGE_EMULATOR_HOST",
        "CURL_CA_BUNDLE",
    }
    unset = ("CLOUDSDK_CORE_PROJECT", "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT")
    assert not {*unset} & {*between}
    direct = between["no_proxy"].split(",")
    assert "intranet.company.com" in direct
    assert not any("googleapis.com" in host for host in direct)
    # The password of the company's proxy is only in the record of the original environment.
    assert "p%20w" not in "".join(value for name, value in between.items() if name != RECORD)


def test_files_are_private(shell: Shell, home: Path) -> None:
    shell.pointed("true", https_proxy="http://me:secret@127.0.0.1:9")
    assert home.stat().st_mode & 0o777 == 0o700
    names = ("boto", "certificates.pem", "credentials.json", "gcloud/configurations/config_local")
    files = [
        home / "token",
        home / "gateway.json",
        *(home / "environment" / name for name in names),
    ]
    files += list((home / "upstreams").iterdir())
    assert len(files) > len(names) + 2
    assert {path.stat().st_mode & 0o077 for path in files} == {0}
    assert not [path for path in shell.home.rglob("*") if path.is_file()]


def test_json_output_and_project_option(shell: Shell, home: Path) -> None:
    answer = json.loads(shell.output("tpuctl local env --json --project lab-project"))["data"]
    assert answer["set"]["GOOGLE_CLOUD_PROJECT"] == "lab-project"
    assert answer["unset"] == []
    again = json.loads(shell.output("tpuctl --json local env"))["data"]["set"]
    assert again["GOOGLE_CLOUD_PROJECT"] == "lab-project"  # as in gcloud's configuration there
    back = json.loads(shell.output(f"tpuctl local env --json --project {PROJECT}"))["data"]["set"]
    assert back["CLOUDSDK_CONFIG"].startswith(str(home))
    refused = shell.run("tpuctl local env --project 'No Project'")
    assert refused.returncode == 2
    assert refused.stdout == "false;\n"


async def recording_proxy(requests: list[str], far: int) -> asyncio.Server:
    """A company's proxy: records requested hosts and connects all of them to one port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        requests.append(head.split(b" ")[1].decode())
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", far)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


async def test_other_hosts_keep_their_proxy_settings(shell: Shell, tmp_path: Path) -> None:
    outside = Authority(tmp_path / "outside")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\noutside")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(
        serve, "127.0.0.1", 0, ssl=outside.context_for("files.company.com")
    )
    asked: list[str] = []
    proxy = await recording_proxy(asked, port_of(server))
    own_authority = tmp_path / "company.pem"
    own_authority.write_bytes(outside.certificate_pem)
    result = await asyncio.to_thread(
        shell.pointed,
        "curl -sS https://files.company.com/\n"
        "curl -sS https://storage.googleapis.com/nowhere/file | head -c 5",
        https_proxy=f"http://127.0.0.1:{port_of(proxy)}",
        CURL_CA_BUNDLE=str(own_authority),
    )
    assert result.startswith("outside")
    assert asked == ["files.company.com:443"]
    # Without a proxy, the shell connects directly: the host is unknown.
    done = await asyncio.to_thread(
        shell.run, 'eval "$(tpuctl local env)"; curl -sS https://files.company.invalid/'
    )
    assert "502" in done.stderr
    assert len(asked) == 1
    for listener in (proxy, server):
        listener.close()


@pytest.mark.soak
def test_restarted_local_cloud_is_reachable_from_configured_shell(shell: Shell, home: Path) -> None:
    look = "import google.auth; from google.cloud import tpu_v2; print(len(list(tpu_v2.TpuClient()"
    look += ".list_nodes(parent='projects/local-project/locations/us-central1-b', timeout=60))))"
    result = shell.pointed(
        f'tpuctl local down\ntpuctl local up --quiet > up\n{sys.executable} -c "{look}"\n'
        "curl -sS -o /dev/null -w '%{http_code}' https://tpu.googleapis.com/v2/projects/x/locations",
        https_proxy="http://127.0.0.1:9",
    )
    assert result.splitlines()[-2:] == ["0", "401"]
    cloud = server_process.status(home)
    assert cloud is not None
    started_with = Path(f"/proc/{cloud.pid}/environ")
    if started_with.exists():
        around = variables_of(started_with.read_text())
        assert around["https_proxy"] == "http://127.0.0.1:9"  # not its own gateway
        assert not {RECORD, "CLOUDSDK_CONFIG", "STORAGE_EMULATOR_HOST"} & {*around}


def test_local_cloud_is_started_and_reported_on_stderr(
    tmp_path: Path,
) -> None:
    other = tmp_path / "cloud"
    shell = Shell(tmp_path, other, f"{sys.executable} -W error -m tpuctl")
    try:
        done = shell.run("tpuctl local env")
        assert done.returncode == 0
        assert "it is not running" in done.stderr
        assert all(line.startswith(("export ", "unset ")) for line in done.stdout.splitlines())
        assert server_process.status(other) is not None
    finally:
        server_process.stop(other)


def test_refresh_tokens_are_checked_also_for_older_clients(shell: Shell) -> None:
    program = """
import json, os
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials
def credentials(token, uri):
    return Credentials(None, refresh_token=token, token_uri=f"https://{uri}", client_id="i",
                       client_secret="s")
known = json.load(open(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]))["refresh_token"]
for uri in ("accounts.google.com/o/oauth2/token", "www.googleapis.com/oauth2/v4/token"):
    refreshed = credentials(known, uri)
    refreshed.refresh(Request())
    print(refreshed.valid)
try:
    credentials("x", "oauth2.googleapis.com/token").refresh(Request())
except RefreshError as error:
    print(error.args[0])
"""
    assert shell.python(program) == ["True", "True", "invalid_grant: Bad Request"]


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_user_tensorflow_reads_and_writes_gs(shell: Shell) -> None:
    from tpuctl.local_cloud.machine_images import ImageStore

    image = asyncio.run(ImageStore().ensure("2.18.0", lambda _: None))
    program = """
import tensorflow as tf
from pathlib import Path
path = "gs://tensorflow-bucket/folder/records"
with tf.io.TFRecordWriter(path) as writer:
    writer.write(b"one" * 100_000)
    writer.write(b"two")
print([len(one.numpy()) for one in tf.data.TFRecordDataset(path)], tf.io.gfile.glob(path + "*"))
tf.io.gfile.remove(path)
print(tf.io.gfile.exists(path), tf.io.gfile.exists("gs://absent/x"))
"""
    (shell.home / "program.py").write_text(program)
    making = "from google.cloud import storage; storage.Client().create_bucket('tensorflow-bucket')"
    result = shell.pointed(
        f'{sys.executable} -c "{making}"\n{image}/bin/python program.py',
        seconds=300,
    )
    assert result.splitlines() == [
        "[300000, 3] ['gs://tensorflow-bucket/folder/records']",
        "False False",
    ]


def test_token_path_prefix_replaces_header_and_stays_in_links(shell: Shell, home: Path) -> None:
    """Clients with a custom endpoint of Cloud Storage send no token."""
    cloud = server_process.status(home)
    assert cloud is not None
    root = f"{cloud.url}/t/{cloud.token}"
    with requests.Session() as session:
        session.trust_env = False

        def send(verb: str, url: str, **more: Any) -> Mapping[str, Any]:
            answer = session.request(verb, url, timeout=60, **more)
            assert answer.ok, (url, answer.text)
            return {"location": answer.headers.get("Location", ""), **(answer.json() or {})}

        assert send("GET", f"{root}/v3/projects/{PROJECT}")["projectId"] == PROJECT
        assert send("GET", f"{root}/v2/projects/{PROJECT}/locations")["locations"]
        zone = f"{root}/compute/v1/projects/{PROJECT}/zones/us-central1-b"
        assert send("GET", zone)["name"] == "us-central1-b"
        path = f"{root}/v1/projects/{PROJECT}/serviceAccounts/unique@x.iam.gserviceaccount.com"
        assert session.get(path, timeout=60).status_code == 404
        assert send("GET", f"{root}/v1/billingAccounts")["billingAccounts"]
        assert send("GET", f"{root}/v1/projects/{PROJECT}/services?filter=state:ENABLED")[
            "services"
        ]
        buckets = f"{root}/storage/v1/b"
        send("POST", f"{buckets}?project={PROJECT}", json={"name": "prefix-bucket"})
        upload = f"{root}/upload/storage/v1/b/prefix-bucket/o?uploadType=resumable&name=one"
        begun = session.post(upload, json={}, timeout=60)
        assert send("PUT", begun.headers["Location"], data=b"bytes")["size"] == "5"
        stored = send("GET", f"{buckets}/prefix-bucket/o/one")
        assert session.get(stored["mediaLink"], timeout=60).content == b"bytes"
        answer = session.get(f"{cloud.url}/t/wrong/v3/projects/{PROJECT}", timeout=60)
        assert answer.status_code == 401
