"""JSON over HTTP: for API features that the official Python clients do not support, and for
requests that take less time than importing the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.server_clock import ServerClock

MAX_TEXT_LENGTH = 300  # of a response that is not the API's, in characters


class Rest:
    """Calls a service by its short name and path, for use with `Cloud.call`:

        rest = cloud.client("rest")
        project = await cloud.call("project p", rest.call, "GET", "serviceusage", "/v1/projects/p")

    Returns the parsed JSON. Errors are raised as the official clients do, so that `Cloud.call`
    converts them in the same way.
    """

    def __init__(
        self, endpoint: Endpoint, credentials: Any, clock: ServerClock | None = None
    ) -> None:
        from google.auth.transport.requests import AuthorizedSession

        self._endpoint = endpoint
        self._session: Any = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        if clock is not None:
            clock.listen(self._session)
        if endpoint.is_local:
            self._session.trust_env = False  # or a proxy would be used for loopback

    def call(
        self,
        verb: str,
        service: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
        retry: None = None,  # accepted for compatibility with the clients' methods
    ) -> Any:
        """`call("POST", "tpu", "/v2alpha1/…", body={…})` returns the response's JSON."""
        answer = self._session.request(
            verb, f"{self.origin(service)}{path}", params=query, json=body, timeout=timeout
        )
        if not answer.ok:
            raise _api_error(answer)
        return answer.json() if answer.content else {}

    def pages(
        self, service: str, path: str, *, query: Mapping[str, str] | None = None, **options: Any
    ) -> Iterator[Any]:
        """Yield the pages of a list, each with a request like `call`'s."""
        page = self.call("GET", service, path, query=query, **options)
        yield page
        while token := page.get("nextPageToken"):
            following = {**(query or {}), "pageToken": token}
            page = self.call("GET", service, path, query=following, **options)
            yield page

    def origin(self, service: str) -> str:
        """The service's origin: `https://tpu.googleapis.com`, or the local cloud."""
        return self._endpoint.url or f"https://{service}.googleapis.com"

    def close(self) -> None:
        self._session.close()


def _api_error(answer: Any) -> Any:
    """The exception for the status in the body, which is more specific than HTTP's."""
    from google.api_core.exceptions import (
        from_grpc_status,
        from_http_response,
        from_http_status,
    )
    from grpc import StatusCode

    try:
        error = answer.json()["error"]
        message = error["message"]
        status = StatusCode[error["status"]] if "status" in error else None
    except (ValueError, LookupError, TypeError):  # not from the API: a proxy's page
        text = f"HTTP {answer.status_code} {answer.reason}: {answer.text[:MAX_TEXT_LENGTH]}"
        return from_http_status(  # type: ignore[no-untyped-call]
            answer.status_code, text, response=answer
        )
    if status is None:  # from Compute Engine
        return from_http_response(answer)  # type: ignore[no-untyped-call]
    return from_grpc_status(  # type: ignore[no-untyped-call]
        status,
        message,
        errors=error.get("errors", ()),
        details=error.get("details", ()),
        response=answer,
    )
