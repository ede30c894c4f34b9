"""Google's APIs, for programs on a worker.

Like those that import it, this file is sent to workers as it is: standard library only, Python 3.8
and later.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import threading
import time
import urllib.parse  # not urllib.request, which takes as long to load as all of these together

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO, Any

STORAGE = "https://storage.googleapis.com"
TIMEOUT = 60.0
MAX_IDLE_SECONDS = 2.0  # a connection that was idle longer is not used again


class HttpError(OSError):
    """A request was refused; `content` is Google's error."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        super().__init__(f"HTTP Error {response.status}: {response.reason}")
        self.code = response.status
        self.reason = response.reason
        self.content = response.read()


# Honors SSL_CERT_DIR, otherwise SSL_CERT_FILE: a folder is searched for the one certificate that is
# needed, and reading a file with all of them takes longer than a request. One context for all
# connections, also those of the forks of a supervisor.
TLS = ssl.create_default_context(capath=os.environ.get("SSL_CERT_DIR"))


class Connection:
    """A connection to a host, which is used for consecutive requests."""

    def __init__(self, host: str) -> None:
        proxy = proxy_for(host)
        server = host if proxy is None else f"{proxy.hostname}:{proxy.port or 80}"
        self.http = http.client.HTTPSConnection(server, timeout=TIMEOUT, context=TLS)
        if proxy is not None:
            self.http.set_tunnel(host, 443, credentials(proxy))
        self.response: http.client.HTTPResponse | None = None
        self.used_at = 0.0

    def request(
        self, method: str, path: str, body: bytes | IO[bytes] | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        """The response, open for reading, until the next request."""
        is_idle = self.response is None or (self.response.isclosed() and not self.response.length)
        if not is_idle or time.monotonic() - self.used_at > MAX_IDLE_SECONDS:
            self.http.close()  # the request opens it
        self.response = None
        try:
            self.http.request(method, path, body, headers)
            self.response = self.http.getresponse()
        except BaseException:
            self.http.close()
            raise
        self.used_at = time.monotonic()
        return self.response


def proxy_for(host: str) -> urllib.parse.SplitResult | None:
    """The URL of the proxy for a host, from https_proxy and no_proxy, as `urllib.request` does."""
    proxy = variable("https_proxy")
    bypassed = [name.strip().lower().lstrip(".") for name in variable("no_proxy").split(",")]
    if not proxy or any(
        name in ("*", host) or host.endswith("." + name) for name in bypassed if name
    ):
        return None
    return urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def variable(name: str) -> str:
    """An environment variable, whose name may be in upper case, too."""
    return os.environ.get(name, os.environ.get(name.upper(), ""))


def credentials(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    """The header for a proxy that requires a user and password."""
    if proxy.username is None:
        return {}
    parts = (proxy.username, proxy.password or "")
    pair = ":".join(map(urllib.parse.unquote, parts))
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode("ascii")}


class Account:
    """Requests to Google's APIs with the machine's own account."""

    def __init__(self) -> None:
        self.connections = threading.local()  # by host
        self.token = ""
        self.expires = 0.0

    def authorization(self) -> str:
        if time.monotonic() >= self.expires:
            grant = json.loads(metadata("instance/service-accounts/default/token"))
            self.token = grant["access_token"]
            self.expires = time.monotonic() + float(grant.get("expires_in", 300)) - 60
        return "Bearer " + self.token

    def request(
        self, method: str, url: str, body: bytes | IO[bytes] | None = None, content_type: str = ""
    ) -> Any:
        """The response, open for reading, until this thread's next request.

        Raises HttpError unless the request succeeded.
        """
        address = urllib.parse.urlsplit(url)
        headers = {"Authorization": self.authorization()}
        if body is not None:
            headers["Content-Type"] = content_type
        if body is not None and not isinstance(body, bytes):
            headers["Content-Length"] = str(os.fstat(body.fileno()).st_size)
        connections = vars(self.connections)
        connection = connections.get(address.netloc) or Connection(address.netloc)
        connections[address.netloc] = connection
        path = url[len(f"https://{address.netloc}") :]
        return check(connection.request(method, path, body, headers))


class Bucket(Account):
    """Requests to one bucket of Cloud Storage."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def open(
        self, method: str, path: str, body: bytes | IO[bytes] | None = None, **query: Any
    ) -> Any:
        url = f"{STORAGE}{path}?{urllib.parse.urlencode(query)}"
        is_media = path.startswith("/upload/")
        content_type = "application/octet-stream" if is_media else "application/json"
        return self.request(method, url, body, content_type)

    def call(
        self, method: str, path: str, body: bytes | IO[bytes] | None = None, **query: Any
    ) -> Any:
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
        for item in self.objects(prefix, "name"):
            yield item["name"]

    def objects(self, prefix: str, fields: str) -> Iterator[dict[str, str]]:
        """All objects with a prefix, with these fields, separated by commas."""
        query: dict[str, Any] = {"prefix": prefix, "fields": f"items({fields}),nextPageToken"}
        while True:
            page = self.call("GET", f"/storage/v1/b/{self.name}/o", **query) or {}
            yield from page.get("items", ())
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def put(self, name: str, body: bytes | IO[bytes], **query: Any) -> int:
        """Upload bytes or a file, and return the new generation."""
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


def metadata(path: str, timeout: float = 10) -> bytes:
    """A value of the machine's metadata server. Raises HttpError unless there is one."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    server = http.client.HTTPConnection(host, timeout=timeout)
    try:
        headers = {"Metadata-Flavor": "Google"}
        server.request("GET", f"/computeMetadata/v1/{path}", headers=headers)
        return check(server.getresponse()).read()
    finally:
        server.close()


def check(response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    """The response. Raises HttpError unless the request succeeded."""
    if 200 <= response.status < 300:
        return response
    raise HttpError(response)


def unless_missing(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except HttpError as error:
        if error.code == 404:
            return None
        raise
