"""The official clients, created on first use, all for one endpoint.

Constraints: the TPU, project and service clients have no default timeout or retry; Compute Engine's
clients would poll operations at Google whatever the endpoint; proxy settings of the environment
would apply to loopback.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.errors import convert, is_foreign
from tpuctl.cloud.objects import ObjectStore
from tpuctl.cloud.rest import Rest
from tpuctl.cloud.server_clock import ServerClock
from tpuctl.cloud.threads import in_thread, recorded
from tpuctl.errors import Transient
from tpuctl.google_imports import client_module, compute_service, defer_signing
from tpuctl.model.troubleshooting.command_record import RecordCall
from tpuctl.model.troubleshooting.known_errors import extract_facts
from tpuctl.polling import Backoff, Clock, SystemClock

T = TypeVar("T")
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
RETRY = Backoff(initial=0.5, maximum=8.0, multiplier=2.0)
MAX_ATTEMPTS = 5
MAX_TEXT_LENGTH = 10_000  # of a request that is searched for names
# gRPC clients: package, module and name of the service. Any other name is a Compute Engine
# collection ("instances", "zone_operations"), "storage" or "rest".
RPC = {
    "billing": ("billing_v1", "cloud_billing", "CloudBilling"),
    "catalog": ("billing_v1", "cloud_catalog", "CloudCatalog"),
    "folders": ("resourcemanager_v3", "folders", "Folders"),
    "iam": ("iam_admin_v1", "iam", "IAM"),
    "org_policies": ("orgpolicy_v2", "org_policy", "OrgPolicy"),
    "organizations": ("resourcemanager_v3", "organizations", "Organizations"),
    "projects": ("resourcemanager_v3", "projects", "Projects"),
    "secrets": ("secretmanager_v1", "secret_manager_service", "SecretManagerService"),
    "services": ("service_usage_v1", "service_usage", "ServiceUsage"),
    "tpu": ("tpu_v2", "tpu", "Tpu"),
    "tpu_alpha": ("tpu_v2alpha1", "tpu", "Tpu"),
    "tpu_v1": ("tpu_v1", "tpu", "Tpu"),
}


class Cloud:
    """Clients of one endpoint, for one project.

    `client` returns a client; `call` calls its methods in a thread, with a timeout, retries of
    transient failures, and conversion of the clients' errors. `record` receives each try.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        project: str,
        clock: Clock | None = None,
        *,
        record: RecordCall | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.project = project
        self.clock = clock or SystemClock()
        self.server_clock = ServerClock()
        self.record = record
        self.hint_facts: Mapping[str, str] = {}  # more facts for the hints of errors
        self._lock = threading.RLock()
        self._clients: dict[str, Any] = {}
        self._abandoned: set[asyncio.Future[Any]] = set()

    async def call(
        self,
        subject: str,
        method: Callable[..., T],
        *args: Any,
        timeout: float = 60.0,
        only_waits: bool = False,
        **fields: Any,
    ) -> T:
        """Call `method(*args, timeout=timeout, retry=None, **fields)`; errors name `subject`.

        With `only_waits` it is a long poll, which `abandoned_calls` need not wait for.

        The clients' retries are disabled: some have none, others retry for ten minutes. Every
        method called here is idempotent: names are derived, so that the retry of a creation whose
        response was lost finds its own result and adopts it.
        """
        method = recorded(method, subject, self.record)
        delays = RETRY.delays()
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                call = in_thread(method, *args, timeout=timeout, retry=None, **fields)
                return await (call if only_waits else self._complete(call))
            except Exception as error:
                if not is_foreign(error):
                    raise
                converted = convert(error, subject, self._facts(args, fields))
                if not isinstance(converted, Transient) or attempt == MAX_ATTEMPTS:
                    raise converted from error
            await self.clock.sleep(next(delays))
        raise AssertionError("the last try returns or raises")

    async def _complete(self, call: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)
            raise

    async def abandoned_calls(self) -> None:
        """Wait for the calls in progress whose callers were cancelled, for instance by Ctrl-C.

        A creation among them may still succeed.
        """
        if self._abandoned:
            await asyncio.wait(self._abandoned)

    def _facts(self, args: Sequence[Any], fields: Mapping[str, Any]) -> dict[str, str]:
        """Facts about a call's target, for the commands in an error's hint."""
        values = [
            *args,
            {name: value for name, value in fields.items() if not isinstance(value, bytes)},
        ]
        texts = [str(value)[:MAX_TEXT_LENGTH] for value in values if not isinstance(value, bytes)]
        acting = {"account": account} if (account := self.endpoint.impersonate) else {}
        return {**acting, **self.hint_facts, **extract_facts(*texts, project=self.project)}

    def client(self, name: str) -> Any:
        """The client of that name. Thread-safe."""
        with self._lock:
            if name not in self._clients:
                try:
                    self._clients[name] = self._create(name)
                except Exception as error:  # this is where credentials are loaded
                    if not is_foreign(error):
                        raise
                    raise convert(error, f"client for {name}", self._facts((), {})) from error
            return self._clients[name]

    def objects(self, bucket: str) -> ObjectStore:
        """The objects of a bucket."""
        return ObjectStore(
            self.client("storage"), bucket, record=self.record, clock=self.server_clock
        )

    async def access_token(self) -> str:
        """The caller's access token, refreshed if it is about to expire."""
        return await in_thread(self._fresh_token)

    def _fresh_token(self) -> str:
        with self._lock:
            try:
                credentials = self._credentials
                if not credentials.valid:
                    from google.auth.transport.requests import Request

                    credentials.refresh(Request())
            except Exception as error:
                if not is_foreign(error):
                    raise
                raise convert(error, "your credentials") from error
            return str(credentials.token)

    def _create(self, name: str) -> Any:
        defer_signing()  # before anything imports google.auth
        if name == "storage":
            return self._storage()
        if name == "rest":
            return Rest(self.endpoint, self._credentials, self.server_clock)
        return self._rpc(*RPC[name]) if name in RPC else self._compute(name)

    @property
    def credentials(self) -> Any:
        """The google-auth credentials that the clients use."""
        return self._credentials

    @cached_property
    def _credentials(self) -> Any:
        account = self.endpoint.impersonate
        if self.endpoint.is_local:
            return _credentials_with(self._local_token(account))
        import google.auth

        from tpuctl.cloud.key_file import require_key_file, unusable_key_file

        require_key_file()
        try:
            credentials, _ = google.auth.default(scopes=[SCOPE])
        except Exception as error:
            if is_foreign(error):
                raise
            # Values of the wrong type, whose errors may contain them.
            raise unusable_key_file("is not a valid key file") from None
        if not account:
            return credentials
        from google.auth.impersonated_credentials import Credentials

        return Credentials(  # type: ignore[no-untyped-call]
            credentials, account, target_scopes=[SCOPE]
        )

    def _local_token(self, account: str) -> str:
        """A token of the local cloud: the endpoint's, or the account's that its holder may get."""
        own_token = self.endpoint.token or ""
        if not account:
            return own_token
        rest = Rest(self.endpoint, _credentials_with(own_token))
        path = f"/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
        answer = rest.call("POST", "iamcredentials", path, body={"scope": [SCOPE]})
        rest.close()
        return str(answer["accessToken"])

    def _rpc(self, package: str, module: str, service: str) -> Any:
        """A client over gRPC."""
        clients = client_module(f"google.cloud.{package}", module)
        client = getattr(clients, f"{service}Client")
        if not self.endpoint.is_local:
            return client(credentials=self._credentials)
        import grpc

        channel = grpc.insecure_channel(
            self.endpoint.authority, options=[("grpc.enable_http_proxy", 0)]
        )
        channel = grpc.intercept_channel(channel, _token_interceptor(self._credentials.token))
        return client(transport=client.get_transport_class("grpc")(channel=channel))

    def _compute(self, service: str) -> Any:
        """A client of a Compute Engine collection, over REST, its only transport."""
        from google.api_core.client_options import ClientOptions

        options = ClientOptions(api_endpoint=self.endpoint.url) if self.endpoint.url else None
        name = "".join(part.capitalize() for part in service.split("_"))
        client = getattr(compute_service(service), f"{name}Client")(
            credentials=self._credentials, client_options=options
        )
        session = client.transport._session
        self.server_clock.listen(session)
        if self.endpoint.is_local:
            session.trust_env = False
        return client

    def _storage(self) -> Any:
        from google.cloud.storage import Client

        # Otherwise a thread reads each bucket's metadata for OpenTelemetry traces, unused here.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        options = {"api_endpoint": self.endpoint.url} if self.endpoint.url else None
        client = Client(project=self.project, credentials=self._credentials, client_options=options)
        self.server_clock.listen(client._http)
        if self.endpoint.is_local:
            client._http.trust_env = False
        return client


def _credentials_with(token: str) -> Any:
    """Credentials of the local cloud, with a token that never expires.

    A client whose token is refused refreshes it and repeats its request: without a handler it would
    fail, with the answer's connection left open.
    """
    from google.oauth2.credentials import Credentials

    return Credentials(  # type: ignore[no-untyped-call]
        token=token, refresh_handler=lambda request, scopes: (token, datetime.max)
    )


def _token_interceptor(token: str) -> Any:
    """Adds the local cloud's bearer token; gRPC's call credentials require TLS."""
    import grpc

    class Details(grpc.ClientCallDetails):  # type: ignore[misc]
        def __init__(self, base: Any) -> None:
            self.method = base.method
            self.timeout = base.timeout
            self.credentials = base.credentials
            self.wait_for_ready = getattr(base, "wait_for_ready", None)
            self.compression = getattr(base, "compression", None)
            self.metadata = [*(base.metadata or ()), ("authorization", f"Bearer {token}")]

    class Interceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            return continuation(Details(details), request)

    return Interceptor()
