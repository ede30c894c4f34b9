"""The gateway's port: authentication, unknown paths, and invalid requests."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from typing import Any

import grpc
import pytest
from google.longrunning import operations_pb2

from tests.support.locations import PARENT


@pytest.mark.parametrize(
    ("path", "family"),
    [
        (f"/v2/{PARENT}/nodes", "platform"),
        ("/v3/projects/local-project", "platform"),
        ("/storage/v1/b?project=local-project", "legacy"),
        ("/compute/v1/projects/local-project", "legacy"),
        ("/_local/status", "platform"),
        ("/t/wrong/storage/v1/b", "legacy"),
        ("/nothing/here", "platform"),
    ],
)
@pytest.mark.parametrize("token", ["", "wrong", "wrong\u00e4"])
def test_rest_requires_token(cloud: Any, path: str, family: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {"Authorization": ""}
    answer = cloud.request("GET", path, headers=headers)
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert error["code"] == 401
    if family == "platform":
        assert error["status"] == "UNAUTHENTICATED"
    else:
        assert error["errors"][0]["reason"] in ("authError", "required")


@pytest.mark.parametrize("token", ["", "wrong"])
def test_grpc_requires_token(cloud: Any, token: str) -> None:
    call = cloud.channel(token).unary_unary("/google.cloud.tpu.v2.Tpu/ListNodes")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_token_in_path(cloud: Any) -> None:
    path = f"/t/{cloud.token}/v3/projects/local-project"
    answer = cloud.request("GET", path, headers={"Authorization": ""})
    assert answer.json()["projectId"] == "local-project"


async def test_machine_token_cannot_use_control_api(cloud: Any) -> None:
    number = cloud.project_number
    account = f"{number}-compute@developer.gserviceaccount.com"  # an editor by default
    token = cloud.server.registry.access.token_for(account)
    answer = await asyncio.to_thread(
        cloud.request, "GET", "/v3/projects/local-project", token=token
    )
    assert answer.status_code == 200
    answer = await asyncio.to_thread(cloud.request, "POST", "/_local/shutdown", token=token)
    assert answer.status_code == 403
    assert not cloud.server.stopping.is_set()


def test_unknown_path_is_not_found(cloud: Any) -> None:
    answer = cloud.request("GET", "/v9/nothing/here")
    assert answer.status_code == 404
    assert "/v9/nothing/here" in answer.text


@pytest.mark.parametrize(
    ("verb", "path", "name"),
    [
        (
            "POST",
            f"/v2alpha1/{PARENT}/nodes/n:performMaintenance",
            "google.cloud.tpu.v2alpha1.Tpu/PerformMaintenance",
        ),
        (
            "POST",
            f"/v2alpha1/{PARENT}/queuedResources/q:performMaintenanceQueuedResource",
            "google.cloud.tpu.v2alpha1.Tpu/PerformMaintenanceQueuedResource",
        ),
        ("POST", "/v3/projects/local-project:move", "Projects/MoveProject"),
        ("POST", "/v1/billingAccounts/010CA1-010CA1-010CA1:move", "MoveBillingAccount"),
        (
            "POST",
            "/compute/v1/projects/local-project/zones/europe-west4-a/instances/i/suspend",
            "google.cloud.compute.v1.Instances/Suspend",
        ),
        (
            "GET",
            "/projects/local-project/zones/europe-west4-a/networkEndpointGroups/g",
            "google.cloud.compute.v1.NetworkEndpointGroups/Get",
        ),
        ("GET", "/compute/v1/projects/local-project/aggregated/vpnTunnels", "AggregatedList"),
        ("GET", "/storage/v1/b/a-bucket/anywhereCaches", "storage.anywhereCaches"),
    ],
)
def test_rest_unimplemented_methods_are_named(cloud: Any, verb: str, path: str, name: str) -> None:
    answer = cloud.request(verb, path, data="{}" if verb == "POST" else "")
    assert answer.status_code == 501
    assert name in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "method",
    [
        "google.cloud.billing.v1.CloudBilling/CreateBillingAccount",
        "google.cloud.tpu.v2alpha1.Tpu/PerformMaintenance",
        "google.iam.admin.v1.IAM/SignBlob",
        "google.longrunning.Operations/CancelOperation",
        "no.such.Service/Method",
        "google.cloud.tpu.v2.Tpu/NoSuchMethod",
    ],
)
def test_grpc_unimplemented_methods_are_named(cloud: Any, method: str) -> None:
    call = cloud.channel().unary_unary(f"/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    for part in method.split("/"):
        assert part in caught.value.details()


def test_grpc_invalid_message_is_rejected(cloud: Any) -> None:
    call = cloud.channel().unary_unary("/google.cloud.tpu.v2.Tpu/GetNode")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff", timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", "Invalid JSON payload"),
        (b"[1]", "Invalid JSON payload"),
        (b'"x"', "Invalid JSON payload"),
        (b'{"noSuchField": 1}', 'Unknown name "noSuchField"'),
        (b'{"networkConfig": {"noSuchField": 1}}', "\"noSuchField\" at 'node.network_config'"),
        (b'{"labels": []}', "Invalid JSON payload"),
        (b'{"labels": {"a": 1}}', "Invalid JSON payload"),
        (b'{"networkConfig": 7}', "Invalid JSON payload"),
        (b'{"tags": "x"}', "Invalid JSON payload"),
        (b'{"id": "many"}', "Invalid JSON payload"),
        (b'{"createTime": "yesterday"}', "Invalid JSON payload"),
        (b'{"state": "NO_SUCH"}', "Invalid JSON payload"),
        (b"\xff\xfe", "Invalid JSON payload"),
        (b"[" * 50000, "Invalid JSON payload"),
    ],
)
def test_invalid_body_is_invalid_argument(cloud: Any, body: bytes, expected: str) -> None:
    path = f"/v2/{PARENT}/nodes?nodeId=n"
    answer = cloud.request("POST", path, data=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["status"] == "INVALID_ARGUMENT"
    assert expected in error["message"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("noSuch=1", "Cannot bind query parameter"),
        ("pageSize=many", "Invalid"),
        ("pageSize=-1", "page_size"),
        ("pageToken=%00%ff", "token"),
    ],
)
def test_invalid_query_is_invalid_argument(cloud: Any, query: str, expected: str) -> None:
    answer = cloud.request("GET", f"/v2/{PARENT}/nodes?{query}")
    assert answer.status_code == 400, answer.text
    assert expected in answer.json()["error"]["message"]


def test_enum_encoding_int_returns_numbers(cloud: Any) -> None:
    path = "/v3/projects/local-project"
    names = cloud.request("GET", path)
    numbers = cloud.request("GET", path + "?%24alt=json%3Benum-encoding%3Dint")
    assert (names.json()["state"], numbers.json()["state"]) == ("ACTIVE", 1)


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is a loopback address only on Linux")
def test_server_listens_on_loopback_only(cloud: Any) -> None:
    with socket.socket() as other:
        # The kernel refuses this while a server uses the port on all addresses.
        other.bind(("127.0.0.2", cloud.server.port))
    assert cloud.url == f"http://127.0.0.1:{cloud.server.port}"


def test_invalid_http_does_not_hang_server(cloud: Any) -> None:
    def talk(data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", cloud.server.port), timeout=60) as near:
            near.sendall(data)
            near.shutdown(socket.SHUT_WR)
            return near.recv(100)

    for data in (b"\x16\x03\x01 hello", b"PRI", b"GET", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxx"):
        talk(data)
    answer = cloud.request("GET", "/_local/status")
    assert answer.json()["nodes"] == 0


def test_grpc_operations_service_finds_all_apis(cloud: Any) -> None:
    created = cloud.request("POST", "/v3/projects", json={"projectId": "second-one"}).json()
    call = cloud.channel().unary_unary(
        "/google.longrunning.Operations/WaitOperation",
        request_serializer=operations_pb2.WaitOperationRequest.SerializeToString,
        response_deserializer=operations_pb2.Operation.FromString,
    )
    operation = call(operations_pb2.WaitOperationRequest(name=created["name"]), timeout=60)
    assert operation.name == created["name"]
    assert operation.done


def test_non_utf8_json_is_rejected(cloud: Any) -> None:
    body = '{"name": "\\ud800"}'.encode("utf-16")
    path = "/compute/v1/projects/local-project/global/networks"
    answer = cloud.request("POST", path, data=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)


async def test_tls_handshake_fails_immediately(cloud: Any) -> None:
    """gcsfs tries TLS, and would otherwise wait for a minute."""
    port = cloud.server.port
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())


@pytest.mark.parametrize(
    ("verb", "path", "status", "reason"),
    [
        ("GET", "/v1/projects/missing-project", 403, "forbidden"),
        ("POST", "/v1/projects", 400, "badRequest"),
        ("GET", "/v1/organizations/1", 403, "forbidden"),
        ("GET", "/v1/projects/local-project/serviceAccounts/a@b.c", 404, "notFound"),
        ("GET", "/v1/roles/nothing", 404, "notFound"),
    ],
)
def test_alt_json_adds_legacy_errors_list(
    cloud: Any, verb: str, path: str, status: int, reason: str
) -> None:
    def get_error(query: str) -> Any:
        answer = cloud.request(verb, path + query, json={} if verb == "POST" else None)
        assert answer.status_code == status, answer.text
        return answer.json()["error"]

    error = get_error("?alt=json")
    message = error["message"]
    assert error["errors"] == [{"message": message, "domain": "global", "reason": reason}]
    assert "errors" not in get_error("")
    assert error["status"] == get_error("")["status"]


def test_other_apis_have_no_legacy_errors_list(cloud: Any) -> None:
    path = "/v2/projects/local-project/locations/europe-west4-a/nodes/nothing?alt=json"
    answer = cloud.request("GET", path)
    assert answer.json()["error"].keys() == {"code", "message", "status", "details"}
