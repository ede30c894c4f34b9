"""Many concurrent official clients: every response is right, and no update is lost."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.cloud.common.types import operation_metadata  # noqa: F401  what REST operations carry
from google.oauth2.credentials import Credentials

from tests.support.killable_server import KillableServer
from tests.support.locations import PARENT, PROJECT

CLIENTS = 64
ROUNDS = 3
CALL_TIMEOUT = 300.0  # timeout of one call: the test is about correctness, on any machine
BUCKET = "shared-by-many"


class Crowd:
    """A server and its independent clients."""

    def __init__(self, server: KillableServer) -> None:
        self.server = server
        self.closing: list[Callable[[], Any]] = []
        self.conflicts: Counter[str] = Counter()

    def rest(self) -> dict[str, Any]:
        return {
            "credentials": Credentials(token=self.server.token),
            "client_options": ClientOptions(api_endpoint=self.server.url),
        }

    def keep(self, client: Any) -> Any:
        self.closing.append(client.transport.close)
        return client

    def transport(self, kind: Any) -> Any:
        """A gRPC transport with a separate connection."""
        channel = grpc.insecure_channel(
            self.server.url.removeprefix("http://"),
            # Without the second option, all clients of this process would share one connection.
            options=[("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)],
        )
        self.closing.append(channel.close)
        return kind(channel=grpc.intercept_channel(channel, _Bearer(self.server.token)))

    def storage(self) -> Any:
        from google.cloud import storage

        client = storage.Client(PROJECT, **self.rest())
        self.closing.append(client._http.close)
        return client


class _Bearer(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def intercept_unary_unary(self, call: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or []), ("authorization", f"Bearer {self._token}")]
        return call(details._replace(metadata=metadata), request)


def objects(crowd: Crowd, number: int) -> None:
    """Private objects, and a counter that all clients increment."""
    bucket = crowd.storage().bucket(BUCKET)
    prefix = f"of/{number:02}"
    for turn in range(ROUNDS):
        data = random.Random(f"{number} {turn}").randbytes(20_000 + number)
        bucket.blob(prefix).upload_from_string(data)
        assert bucket.blob(prefix).download_as_bytes() == data
        while True:
            counter = bucket.get_blob("counter")
            try:
                value = int(counter.download_as_bytes())  # of that generation
                counter.upload_from_string(
                    str(value + 1), if_generation_match=counter.generation, retry=None
                )
                break
            except (exceptions.NotFound, exceptions.PreconditionFailed):
                crowd.conflicts["counter"] += 1
    assert [blob.name for blob in bucket.list_blobs(prefix=prefix)] == [prefix]


def nodes(crowd: Crowd, number: int, client: Any) -> None:
    from google.cloud import tpu_v2

    name = f"{PARENT}/nodes/node-{number}"
    requested = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")
    for _ in range(2):
        operation = client.create_node(
            parent=PARENT, node_id=f"node-{number}", node=requested, timeout=CALL_TIMEOUT
        )
        assert operation.result(timeout=CALL_TIMEOUT).name == name
        assert client.get_node(name=name, timeout=CALL_TIMEOUT).state is tpu_v2.Node.State.READY
        assert name in {
            node.name for node in client.list_nodes(parent=PARENT, timeout=CALL_TIMEOUT)
        }
        client.delete_node(name=name, timeout=CALL_TIMEOUT).result(timeout=CALL_TIMEOUT)
        with pytest.raises(exceptions.NotFound):
            client.get_node(name=name, timeout=CALL_TIMEOUT)


def nodes_by_grpc(crowd: Crowd, number: int) -> None:
    from google.cloud import tpu_v2
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

    nodes(crowd, number, tpu_v2.TpuClient(transport=crowd.transport(TpuGrpcTransport)))


def nodes_by_rest(crowd: Crowd, number: int) -> None:
    from google.cloud import tpu_v2

    nodes(crowd, number, crowd.keep(tpu_v2.TpuClient(transport="rest", **crowd.rest())))


def members(crowd: Crowd, number: int, client: Any) -> None:
    """Grants to members of this client, in the policy that all clients change."""
    for turn in range(ROUNDS):
        while True:
            policy = client.get_iam_policy(resource=f"projects/{PROJECT}", timeout=CALL_TIMEOUT)
            policy.bindings.add(
                role="roles/viewer", members=[f"user:of-{number}-{turn}@example.com"]
            )
            request = {"resource": f"projects/{PROJECT}", "policy": policy}
            try:
                client.set_iam_policy(request=request, timeout=CALL_TIMEOUT)
                break
            except (exceptions.Aborted, exceptions.Conflict):
                crowd.conflicts["policy"] += 1


def members_by_grpc(crowd: Crowd, number: int) -> None:
    from google.cloud import resourcemanager_v3 as manager
    from google.cloud.resourcemanager_v3.services.projects import transports

    transport = crowd.transport(transports.ProjectsGrpcTransport)
    members(crowd, number, manager.ProjectsClient(transport=transport))


def members_by_rest(crowd: Crowd, number: int) -> None:
    from google.cloud import resourcemanager_v3 as manager

    members(crowd, number, crowd.keep(manager.ProjectsClient(transport="rest", **crowd.rest())))


def firewalls(crowd: Crowd, number: int) -> None:
    from google.cloud import compute_v1

    client = crowd.keep(compute_v1.FirewallsClient(**crowd.rest()))
    scope = {"project": PROJECT, "timeout": CALL_TIMEOUT}
    for turn in range(ROUNDS):
        name = f"rule-{number}-{turn}"
        rule = compute_v1.Firewall(
            name=name,
            network="global/networks/default",
            priority=100 + number,
            allowed=[compute_v1.Allowed(I_p_protocol="tcp", ports=["22"])],
        )
        client.insert_unary(firewall_resource=rule, **scope)
        assert client.get(firewall=name, **scope).priority == 100 + number
        assert name in {firewall.name for firewall in client.list(**scope)}


def accounts(crowd: Crowd, number: int) -> None:
    from google.cloud import iam_admin_v1
    from google.cloud.iam_admin_v1.services.iam.transports import IAMGrpcTransport

    client = iam_admin_v1.IAMClient(transport=crowd.transport(IAMGrpcTransport))
    for turn in range(ROUNDS):
        request = {"name": f"projects/{PROJECT}", "account_id": f"account-{number}-{turn}"}
        created = client.create_service_account(request=request, timeout=CALL_TIMEOUT)
        stored = client.get_service_account(name=created.name, timeout=CALL_TIMEOUT)
        assert stored == created


WORK: tuple[Callable[[Crowd, int], None], ...] = (
    *(objects, nodes_by_grpc, members_by_rest, firewalls),
    *(objects, nodes_by_rest, members_by_grpc, accounts),
)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    server = KillableServer(tmp_path / "home")
    assert server.start()
    crowd = Crowd(server)
    for api in ("compute", "tpu", "iam"):
        path = f"/v1/projects/{PROJECT}/services/{api}.googleapis.com:enable"
        assert server.request("POST", path, json={}).ok
    bucket = crowd.storage().create_bucket(BUCKET)
    bucket.blob("counter").upload_from_string("0")
    yield crowd
    for close in crowd.closing:
        close()
    server.close()


@pytest.mark.soak
def test_concurrent_clients_lose_no_updates(crowd: Crowd) -> None:
    all_there = threading.Barrier(CLIENTS)

    def run_client(number: int) -> str:
        work = WORK[number % len(WORK)]
        all_there.wait(CALL_TIMEOUT)
        work(crowd, number)
        return work.__name__

    with ThreadPoolExecutor(CLIENTS) as pool:
        done = Counter(pool.map(run_client, range(CLIENTS)))
    assert sum(done.values()) == CLIENTS
    # No update was lost.
    counter = crowd.storage().bucket(BUCKET).blob("counter").download_as_bytes()
    assert int(counter) == done["objects"] * ROUNDS
    policy = crowd.server.request("POST", f"/v3/projects/{PROJECT}:getIamPolicy").json()
    members = [member for binding in policy["bindings"] for member in binding["members"]]
    expected = (done["members_by_rest"] + done["members_by_grpc"]) * ROUNDS
    assert len([member for member in members if member.startswith("user:of-")]) == expected
    assert crowd.conflicts["counter"] > 0, "the clients did not run concurrently"
    assert crowd.server.request("GET", "/_local/status").json()["nodes"] == 0
