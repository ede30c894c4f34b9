"""Topics of Pub/Sub, for suites that need some to exist: they carry no messages.

The local cloud does not emulate Pub/Sub. Subscriptions, and all else, are refused as unimplemented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from google.iam.v1 import iam_policy_pb2, policy_pb2


class _Handlers(grpc.GenericRpcHandler):
    """A topic is what creates it, and a request for one has its name where the topic has it."""

    def __init__(self) -> None:
        self._policies: dict[str, bytes] = {}
        self._methods: dict[str, Callable[[bytes], bytes]] = {
            "/google.pubsub.v1.Publisher/CreateTopic": lambda request: request,
            "/google.pubsub.v1.Publisher/GetTopic": lambda request: request,
            "/google.pubsub.v1.Publisher/DeleteTopic": lambda request: b"",
            "/google.pubsub.v1.Publisher/ListTopics": lambda request: b"",
            "/google.iam.v1.IAMPolicy/GetIamPolicy": self._get_policy,
            "/google.iam.v1.IAMPolicy/SetIamPolicy": self._set_policy,
        }

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: method(request))

    def _get_policy(self, request: bytes) -> bytes:
        name = iam_policy_pb2.GetIamPolicyRequest.FromString(request).resource
        return self._policies.get(name, b"")

    def _set_policy(self, request: bytes) -> bytes:
        message = iam_policy_pb2.SetIamPolicyRequest.FromString(request)
        policy = policy_pb2.Policy(bindings=message.policy.bindings, etag=b"etag")
        self._policies[message.resource] = policy.SerializeToString()
        return self._policies[message.resource]


@contextmanager
def topics() -> Iterator[dict[str, str]]:
    """Serve topics; yields the variables that tell Google's clients where."""
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Handlers()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield {"PUBSUB_EMULATOR_HOST": f"127.0.0.1:{port}"}
    finally:
        server.stop(None).wait()
