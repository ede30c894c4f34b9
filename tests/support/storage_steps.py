"""The steps of storage's cases: through the official client, or as plain HTTP requests."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import requests
from google.api_core import exceptions
from google.cloud import storage

from tests.support.locations import PROJECT
from tests.support.truncating_proxy import TruncatingProxy

Result = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A storage server and its credentials."""

    url: str
    credentials: Any
    headers: dict[str, str] = field(default_factory=dict)
    has_google_messages: bool = True

    def client(self, url: str = "") -> Any:
        return storage.Client(
            project=PROJECT,
            credentials=self.credentials,
            client_options={"api_endpoint": url or self.url},
        )


class Step:
    """A running step of a case."""

    def __init__(
        self, server: Server, client: Any, bucket: str, results: dict[str, Result], where: str
    ) -> None:
        self.server = server
        self.client = client
        self.bucket = client.bucket(bucket)
        self.results = results
        self.where = where

    def take(self, step: dict[str, Any]) -> None:
        verb = step.pop("do")
        error, says = step.pop("error", None), self.filled(step.pop("says", ""))
        has, label = step.pop("has", None), step.pop("as", "")
        expected = {key: self.filled(value) for key, value in step.items()}
        try:
            result = VERBS[verb](self, **expected)
        except exceptions.GoogleAPICallError as raised:
            assert raised.code == error, f"{self.where}: {raised!r}"
            if self.server.has_google_messages:
                assert says in str(raised), f"{self.where}: {raised}"
            return
        assert error is None, f"{self.where} was not rejected: {result}"
        if label:
            self.results[label] = result
        if has is not None:
            self.compare(self.filled(has), result, self.where)

    def filled(self, value: Any) -> Any:
        """The value with references to earlier results replaced."""
        if isinstance(value, dict):
            return {key: self.filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if not isinstance(value, str):
            return value
        if value.startswith("!$"):
            return f"!{self.find(value[2:])}"
        if value.startswith("$"):
            return self.find(value[1:])
        return re.sub(r"\{([a-z]\w*\.[\w.-]+)\}", lambda match: str(self.find(match[1])), value)

    def find(self, path: str) -> Any:
        value: Any = self.results
        for part in path.split("."):
            value = value[int(part) if part.isdigit() else part]
        return value

    def compare(self, expected: Any, actual: Any, where: str) -> None:
        if isinstance(expected, dict):
            assert isinstance(actual, dict), f"{where}: {actual!r} is not an object"
            for key, value in expected.items():
                if value == "-":
                    assert not actual.get(key), f"{where}: {key} is {actual[key]!r}"
                elif key not in actual:
                    raise AssertionError(f"{where}: no {key} in {actual}")
                else:
                    self.compare(value, actual[key], f"{where}: {key}")
        elif isinstance(expected, str) and expected.startswith("!"):
            assert actual != expected[1:], f"{where}: {actual!r}"
        elif expected != "+":
            assert actual == expected, f"{where}: {actual!r} is not {expected!r}"

    # The steps. Each returns the response.

    def blob(self, name: str, at: Any = None) -> Any:
        return self.bucket.blob(name, generation=int(at) if at else None)

    def upload(
        self,
        name: str,
        data: str = "",
        size: int = 0,
        chunk: int = 0,
        cut_after: int = 0,
        set: dict[str, Any] | None = None,
        **more: Any,
    ) -> Result:
        content = _bytes(size) if size else data.encode()
        if not cut_after:
            more.setdefault("retry", None)  # fail immediately
            blob = _prepared(self.blob(name), set)
            blob.chunk_size = chunk or None
            blob.upload_from_string(content, **more)
            return dict(blob._properties)
        with TruncatingProxy(self.server.url, cut_after) as cutter:
            client = self.server.client(cutter.url)
            try:
                blob = _prepared(client.bucket(self.bucket.name).blob(name), set)
                blob.chunk_size = chunk
                blob.upload_from_string(content, **more)
            finally:
                client._http.close()
            assert cutter.cuts == 1, f"{self.where}: the connection was not cut"
        return dict(blob._properties)

    def gzip(
        self,
        name: str,
        data: str,
        set: dict[str, Any] | None = None,
        in_flight: bool = False,
    ) -> Result:
        """Upload compressed bytes: stored compressed, or compressed for the transfer only."""
        content = gzip.compress(data.encode(), mtime=0)
        if not in_flight:
            blob = _prepared(self.blob(name), {**(set or {}), "content_encoding": "gzip"})
            blob.upload_from_string(content)
            return dict(blob._properties)
        path = f"{self.server.url}/upload/storage/v1/b/{self.bucket.name}/o"
        headers = {**self.server.headers, "Content-Encoding": "gzip"}
        query = {"uploadType": "media", "name": name}
        with requests.Session() as session:
            session.trust_env = False
            answer = session.post(path, content, headers=headers, params=query, timeout=60)
        assert answer.status_code == 200, f"{self.where}: {answer.text}"
        return dict(answer.json())

    def download(self, name: str, at: Any = None, size: int = 0, **more: Any) -> Result:
        content = self.blob(name, at).download_as_bytes(**more)
        if size:
            return {"is_whole": content == _bytes(size)}
        return {"text": content.decode("latin-1"), "size": str(len(content))}

    def get(self, name: str, at: Any = None, **more: Any) -> Result:
        blob = self.blob(name, at)
        blob.reload(**more)
        return dict(blob._properties)

    def exists(self, name: str, at: Any = None, **more: Any) -> Result:
        return {"exists": self.blob(name, at).exists(**more)}

    def change(
        self,
        name: str,
        set: dict[str, Any],
        at: Any = None,
        how: str = "patch",
        **more: Any,
    ) -> Result:
        blob = _prepared(self.blob(name, at), set)
        getattr(blob, how)(**more)
        return dict(blob._properties)

    def delete(self, name: str, at: Any = None, **more: Any) -> Result:
        self.blob(name, at).delete(**more)
        return {}

    def compose(
        self, name: str, sources: list[Any], set: dict[str, Any] | None = None, **more: Any
    ) -> Result:
        blobs = [
            self.blob(*source) if isinstance(source, list) else self.blob(source)
            for source in sources
        ]
        blob = _prepared(self.blob(name), set)
        blob.compose(blobs, **more)
        return dict(blob._properties)

    def rewrite(
        self,
        name: str,
        source: str,
        at: Any = None,
        set: dict[str, Any] | None = None,
        **more: Any,
    ) -> Result:
        blob = _prepared(self.blob(name), set)
        token, rewritten, total = blob.rewrite(self.blob(source, at), **more)
        return {"token": token, "rewritten": rewritten, "total": total, **blob._properties}

    def copy(self, name: str, to: str, at: Any = None, **more: Any) -> Result:
        if at:
            more["source_generation"] = int(at)
        copy = self.bucket.copy_blob(self.blob(name), self.bucket, to, **more)
        return dict(copy._properties)

    def move(self, name: str, to: str, **more: Any) -> Result:
        return dict(self.bucket.move_blob(self.blob(name), to, **more)._properties)

    def restore(self, name: str, at: Any, **more: Any) -> Result:
        return dict(self.bucket.restore_blob(name, generation=int(at), **more)._properties)

    def list(self, **more: Any) -> Result:
        match = self.client.list_blobs(self.bucket, **more)
        pages = [list(page) for page in match.pages]
        blobs = [blob for page in pages for blob in page]
        return {
            "names": [blob.name for blob in blobs],
            "generations": [str(blob.generation) for blob in blobs],
            "prefixes": sorted(match.prefixes),
            "pages": len(pages),
            "items": [dict(blob._properties) for blob in blobs],
        }

    def get_bucket(self, **more: Any) -> Result:
        bucket = self.client.bucket(self.bucket.name)
        bucket.reload(**more)
        return dict(bucket._properties)

    def change_bucket(self, set: dict[str, Any], how: str = "patch", **more: Any) -> Result:
        bucket = self.client.bucket(self.bucket.name)
        bucket.reload()
        _prepared(bucket, set)
        getattr(bucket, how)(**more)
        return dict(bucket._properties)

    def lock_bucket(self) -> Result:
        bucket = self.client.bucket(self.bucket.name)
        bucket.reload()
        bucket.lock_retention_policy()
        return dict(bucket._properties)

    def delete_bucket(self, **more: Any) -> Result:
        self.client.bucket(self.bucket.name).delete(**more)
        return {}

    def get_policy(self, **more: Any) -> Result:
        policy = self.bucket.get_iam_policy(requested_policy_version=3, **more)
        return {
            "etag": policy.etag,
            "roles": sorted(binding["role"] for binding in policy.bindings),
        }

    def grant(self, role: str, member: str, condition: Any = None, etag: str = "") -> Result:
        policy = self.bucket.get_iam_policy(requested_policy_version=3)
        policy.version = 3
        binding: dict[str, Any] = {"role": role, "members": {member}}
        if condition:
            binding["condition"] = condition
        policy.bindings.append(binding)
        policy.etag = etag or policy.etag
        self.bucket.set_iam_policy(policy, retry=None)
        return {"etag": self.bucket.get_iam_policy(requested_policy_version=3).etag}

    def send(
        self,
        verb: str,
        path: str,
        body: str = "",
        size: int = 0,
        begin: int = 0,
        end: int = 0,
        json: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Result:
        content = _bytes(size)[begin : end or size] if size else body.encode()
        all_headers = {**self.server.headers, **(headers or {})}
        url = path if path.startswith("http") else self.server.url + path
        with requests.Session() as session:
            session.trust_env = False
            session.headers["Accept-Encoding"] = all_headers.pop("Accept-Encoding", "identity")
            answer = session.request(
                verb, url, data=content or None, json=json, headers=all_headers, timeout=60
            )
        kind = answer.headers.get("Content-Type", "")
        is_json = answer.content and kind.startswith("application/json")
        return {
            "status": answer.status_code,
            "headers": {key.lower(): value for key, value in answer.headers.items()},
            "json": answer.json() if is_json else None,
            "text": answer.content.decode("latin-1"),
        }


VERBS: dict[str, Callable[..., Result]] = {
    "blob.upload": Step.upload,
    "blob.gzip": Step.gzip,
    "blob.download": Step.download,
    "blob.get": Step.get,
    "blob.exists": Step.exists,
    "blob.patch": Step.change,
    "blob.delete": Step.delete,
    "blob.compose": Step.compose,
    "blob.rewrite": Step.rewrite,
    "blob.copy": Step.copy,
    "blob.move": Step.move,
    "blob.restore": Step.restore,
    "list": Step.list,
    "bucket.get": Step.get_bucket,
    "bucket.patch": Step.change_bucket,
    "bucket.lock": Step.lock_bucket,
    "bucket.delete": Step.delete_bucket,
    "bucket.policy": Step.get_policy,
    "bucket.grant": Step.grant,
    "send": Step.send,
}


def _prepared(resource: Any, fields: dict[str, Any] | None) -> Any:
    for key, value in (fields or {}).items():
        setattr(resource, key, None if value == "-" else value)
    return resource


def _bytes(size: int) -> bytes:
    """Bytes that do not repeat in blocks of a power of two."""
    unit = bytes(range(251))
    return (unit * (size // len(unit) + 1))[:size]
