"""JSON over HTTP: for what Google's APIs take and their official Python clients cannot say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.cloud.endpoints import Endpoint

__all__ = ["Rest"]

LONGEST = 300  # characters told of an answer that is not the API's


class Rest:
    """Calls by the service's short name and the path below its origin, for `Cloud.call`:

        rest = cloud.client("rest")
        found = await cloud.call("it", rest.call, "GET", "serviceusage", "/v1beta1/projects/p")

    Answers are the JSON as it came. What Google refuses is raised as the official clients raise
    it, so that `Cloud.call` converts it by the same table.
    """

    def __init__(self, endpoint: Endpoint, credentials: Any) -> None:
        from google.auth.transport.requests import AuthorizedSession

        self._endpoint = endpoint
        self._session: Any = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        if endpoint.is_local:
            self._session.trust_env = False  # a proxy would be asked for loopback

    def call(
        self,
        verb: str,
        service: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
        retry: None = None,  # as the clients' methods take it: there is none to switch off
    ) -> Any:
        """`call("POST", "tpu", "/v2alpha1/…", body={…})`: the answer's JSON."""
        answer = self._session.request(
            verb, f"{self.origin(service)}{path}", params=query, json=body, timeout=timeout
        )
        if not answer.ok:
            raise _refusal(answer)
        return answer.json() if answer.content else {}

    def origin(self, service: str) -> str:
        """Where the service is: `https://tpu.googleapis.com`, or the local cloud for them all."""
        return self._endpoint.url or f"https://{service}.googleapis.com"

    def close(self) -> None:
        self._session.close()


def _refusal(answer: Any) -> Any:
    """The error that the status in the body names; HTTP's own says less: 400 is many things."""
    from google.api_core.exceptions import from_grpc_status, from_http_status
    from grpc import StatusCode

    try:
        told = answer.json()["error"]
        status = StatusCode[told["status"]]
    except (ValueError, LookupError, TypeError):  # not an answer of the API: a proxy's page
        text = f"HTTP {answer.status_code} {answer.reason}: {answer.text[:LONGEST]}"
        return from_http_status(  # type: ignore[no-untyped-call]
            answer.status_code, text, response=answer
        )
    return from_grpc_status(  # type: ignore[no-untyped-call]
        status,
        told.get("message", ""),
        errors=told.get("errors", ()),
        details=told.get("details", ()),
        response=answer,
    )
