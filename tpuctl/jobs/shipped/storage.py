"""Google's APIs, for programs on a worker.

Like those that import it, this file is sent to workers as it is: standard library only, Python 3.8
and later.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Account", "Bucket", "unless_missing"]

STORAGE = "https://storage.googleapis.com"


class Account:
    """Requests to Google's APIs with the machine's own account."""

    def __init__(self) -> None:
        # Honors https_proxy and SSL_CERT_FILE. One context for all requests: loading the system's
        # certificates takes longer than a request.
        secure = urllib.request.HTTPSHandler(context=ssl.create_default_context())
        self.opener = urllib.request.build_opener(secure)
        self.direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.token = ""
        self.expires = 0.0

    def authorization(self) -> str:
        if time.monotonic() >= self.expires:
            host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
            path = "computeMetadata/v1/instance/service-accounts/default/token"
            request = urllib.request.Request(f"http://{host}/{path}")
            request.add_header("Metadata-Flavor", "Google")
            with self.direct.open(request, timeout=10) as response:
                grant = json.load(response)
            self.token = grant["access_token"]
            self.expires = time.monotonic() + float(grant.get("expires_in", 300)) - 60
        return "Bearer " + self.token

    def request(
        self, method: str, url: str, body: bytes | None = None, content_type: str = ""
    ) -> Any:
        """The response, open for reading. `kind` is the Content-Type of the body."""
        request = urllib.request.Request(url, data=body, method=method)
        request.add_header("Authorization", self.authorization())
        if body is not None:
            request.add_header("Content-Type", content_type)
        return self.opener.open(request, timeout=60)


class Bucket(Account):
    """Requests to one bucket of Cloud Storage."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def open(self, method: str, path: str, body: bytes | None = None, **query: Any) -> Any:
        url = f"{STORAGE}{path}?{urllib.parse.urlencode(query)}"
        is_media = path.startswith("/upload/")
        content_type = "application/octet-stream" if is_media else "application/json"
        return self.request(method, url, body, content_type)

    def call(self, method: str, path: str, body: bytes | None = None, **query: Any) -> Any:
        with self.open(method, path, body, **query) as response:
            text = response.read()
        return json.loads(text) if text else None

    def object(self, name: str) -> str:
        return "/storage/v1/b/{}/o/{}".format(self.name, urllib.parse.quote(name, safe=""))

    def stat(self, name: str) -> tuple[int, int]:
        """Size and generation; (0, 0) if the object does not exist."""
        metadata = unless_missing(lambda: self.call("GET", self.object(name)))
        return (int(metadata["size"]), int(metadata["generation"])) if metadata else (0, 0)

    def read(self, name: str) -> Any:
        """The value of an object with JSON; None if the object does not exist."""
        return unless_missing(lambda: self.call("GET", self.object(name), alt="media"))

    def names(self, prefix: str) -> Iterator[str]:
        """The names of all objects with a prefix."""
        query: dict[str, Any] = {"prefix": prefix, "fields": "items/name,nextPageToken"}
        while True:
            page = self.call("GET", f"/storage/v1/b/{self.name}/o", **query) or {}
            for item in page.get("items", ()):
                yield item["name"]
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def put(self, name: str, body: bytes, **query: Any) -> int:
        """Upload and return the new generation."""
        path = f"/upload/storage/v1/b/{self.name}/o"
        response = self.call("POST", path, body, uploadType="media", name=name, **query)
        return int(response["generation"])

    def join(self, name: str, generation: int, part: str, part_generation: int) -> int:
        """Append one object to another on the server and return the new generation."""
        sources = [
            {"name": name, "generation": str(generation)},
            {"name": part, "generation": str(part_generation)},
        ]
        request = {
            "sourceObjects": sources,
            "destination": {"contentType": "application/octet-stream"},
        }
        path, body = self.object(name) + "/compose", json.dumps(request).encode()
        response = self.call("POST", path, body, ifGenerationMatch=generation)
        return int(response["generation"])

    def delete(self, name: str, **query: Any) -> None:
        unless_missing(lambda: self.call("DELETE", self.object(name), **query))


def unless_missing(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
