"""Cloud Storage: which part answers which request of the JSON and XML APIs."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from tpuctl.emulator.http import Request
from tpuctl.emulator.services.storage_batch import answer_batch
from tpuctl.emulator.services.storage_buckets import Buckets
from tpuctl.emulator.services.storage_common import Answer, Call, Files, NotModified
from tpuctl.emulator.services.storage_media import send_media
from tpuctl.emulator.services.storage_objects import Objects
from tpuctl.emulator.services.storage_uploads import Uploads
from tpuctl.emulator.services.storage_xml import Xml
from tpuctl.emulator.status import ApiError, unimplemented
from tpuctl.emulator.world import World

__all__ = ["StorageService"]

Handler = Callable[[Call], Answer | Awaitable[Answer]]

# The collections whose methods are known by name but not imitated.
_ABSENT = {
    "acl": "bucketAccessControls",
    "defaultObjectAcl": "defaultObjectAccessControls",
    "notificationConfigs": "notifications",
    "folders": "folders",
    "anywhereCaches": "anywhereCaches",
    "lockRetentionPolicy": "buckets.lockRetentionPolicy",
    "restore": "buckets.restore",
}


class StorageService:
    """The handlers of storage v1."""

    def __init__(self, world: World) -> None:
        self._world = world
        buckets = Buckets(world)
        self._objects = Objects(world.store, buckets, Files(world.home))
        self._uploads = Uploads(world.store, self._objects)
        self._xml = Xml(self._objects, self._uploads)
        objects = self._objects
        # By verb and the shape of the path: letters stand, * is any one segment.
        self._table: dict[tuple[str, str], Handler] = {
            ("GET", "b"): buckets.list_all,
            ("POST", "b"): buckets.insert,
            ("GET", "b/*"): buckets.get,
            ("PATCH", "b/*"): buckets.patch,
            ("PUT", "b/*"): buckets.update,
            ("DELETE", "b/*"): buckets.delete,
            ("GET", "b/*/iam"): buckets.get_policy,
            ("PUT", "b/*/iam"): buckets.set_policy,
            ("GET", "b/*/iam/testPermissions"): buckets.test_permissions,
            ("GET", "b/*/storageLayout"): buckets.storage_layout,
            ("GET", "b/*/managedFolders"): self._no_folders,
            ("GET", "b/*/o"): objects.list_all,
            ("GET", "b/*/o/*"): objects.get,
            ("PATCH", "b/*/o/*"): objects.patch,
            ("PUT", "b/*/o/*"): objects.update,
            ("DELETE", "b/*/o/*"): objects.delete,
            ("POST", "b/*/o/*/compose"): objects.compose,
            ("POST", "b/*/o/*/rewriteTo/b/*/o/*"): objects.copy,
            ("POST", "b/*/o/*/copyTo/b/*/o/*"): objects.copy,
            ("GET", "projects/*/serviceAccount"): buckets.service_account,
        }

    def sweep(self) -> None:
        """Remove what a killed process left lying about."""
        self._uploads.sweep()
        self._objects.sweep()

    async def handle(self, request: Request) -> web.StreamResponse | None:
        """Answer, or None where the path is none of Cloud Storage's."""
        path = request.path
        upload = re.fullmatch(r"(?:/resumable)?/upload/storage/v1/b/([^/]+)/o/?", path)
        try:
            if upload is not None:
                return await self._upload(request, unquote(upload[1]))
            if path == "/batch/storage/v1":
                return await answer_batch(request, self._answer)
            found = re.fullmatch(r"(?:/download)?/storage/v1/(.+)|/(b(?:/.*)?)", path)
            if found is not None:
                parts = _split(found[1] or found[2])
                is_media = request.first("alt") == "media" or path.startswith("/download/")
                if request.verb in ("GET", "HEAD") and is_media and _shape(parts) == "b/*/o/*":
                    return await self._download(request, parts[1], parts[3])
                return await self._json(request, parts)
            return await self._plain(request)
        except NotModified:
            return web.Response(status=304)

    async def _upload(self, request: Request, bucket: str) -> web.StreamResponse:
        if request.first("upload_id"):
            if request.verb in ("PUT", "POST"):
                return await self._uploads.proceed(request)
            if request.verb == "DELETE":
                return self._uploads.cancel(request)
        if request.verb in ("POST", "PUT"):
            return await self._uploads.start(request, bucket)
        raise unimplemented(f"storage.objects {request.verb} on an upload path")

    async def _download(self, request: Request, bucket: str, name: str) -> web.StreamResponse:
        stored = self._objects.must(request.query, bucket, name, is_read=True)
        with self._objects.files.open(stored.file) as file:
            return await send_media(request, stored, file)

    async def _json(self, request: Request, parts: list[str]) -> web.StreamResponse:
        call = Call(
            verb=request.raw.headers.get("X-HTTP-Method-Override", request.verb).upper(),
            parts=parts,
            query=request.query,
            body=await request.read(),
            base_url=request.base_url,
            email=request.email,
            headers=request.raw.headers,
        )
        answer = await self._answer(call)
        if answer.value is None:
            return web.Response(status=answer.status)
        headers = {"Cache-Control": "no-cache, no-store, max-age=0, must-revalidate"}
        if isinstance(answer.value, dict) and answer.value.get("etag"):
            headers["ETag"] = str(answer.value["etag"])
        return web.Response(
            status=answer.status,
            body=json.dumps(answer.value).encode(),
            content_type="application/json",
            charset="UTF-8",
            headers=headers,
        )

    async def _answer(self, call: Call) -> Answer:
        shape = _shape(call.parts)
        handler = self._table.get((call.verb, shape))
        if handler is None and call.verb == "HEAD":
            handler = self._table.get(("GET", shape))
        if handler is None:
            raise _refusal(call, shape)
        answer = handler(call)
        if inspect.isawaitable(answer):
            answer = await answer
        return answer

    async def _plain(self, request: Request) -> web.StreamResponse | None:
        """`/BUCKET/OBJECT`, at storage's own host or, for known buckets, at any."""
        host = request.host.partition(":")[0]
        path = request.path.removeprefix("/")
        if host.endswith(".storage.googleapis.com"):
            bucket, rest = host.removesuffix(".storage.googleapis.com"), path
        else:
            bucket, _, rest = path.partition("/")
            bucket = unquote(bucket)
            is_ours = self._world.store.get("bucket", bucket) is not None
            if host != "storage.googleapis.com" and not (is_ours and rest):
                return None
        return await self._xml.handle(request, bucket, rest)

    def _no_folders(self, call: Call) -> Answer:
        return Answer({"kind": "storage#managedFolders"})


def _split(path: str) -> list[str]:
    """Decoded segments. An object's name may have come with its slashes bare."""
    parts = path.strip("/").split("/") if not path.startswith("b/") else path.split("/")
    while parts and parts[-1] == "" and len(parts) <= 3:
        parts.pop()
    if len(parts) > 3 and parts[0] == "b" and parts[2] == "o":
        tail = parts[3:]
        if tail == [""]:
            return [unquote(part) for part in parts[:3]]
        for verb in ("rewriteTo", "copyTo"):
            if verb in tail[1:] and tail[tail.index(verb, 1) + 1 :][:1] == ["b"]:
                at = tail.index(verb, 1)
                source, target = "/".join(tail[:at]), tail[at + 4 :]
                names = [verb, "b", tail[at + 2], "o", "/".join(target)]
                return [unquote(part) for part in [*parts[:3], source, *names]]
        if len(tail) > 1 and tail[-1] == "compose":
            return [unquote(part) for part in [*parts[:3], "/".join(tail[:-1]), "compose"]]
        if len(tail) == 2 and tail[1] in ("acl", "iam"):
            return [unquote(part) for part in parts]
        return [unquote(part) for part in [*parts[:3], "/".join(tail)]]
    return [unquote(part) for part in parts]


def _shape(parts: list[str]) -> str:
    """The path with the names in it replaced: every second segment is one."""
    if parts[:1] == ["projects"]:
        return "/".join("*" if index == 1 else part for index, part in enumerate(parts))
    named = (1, 3, 6, 8) if parts[2:3] == ["o"] else (1,)
    return "/".join("*" if index in named else part for index, part in enumerate(parts))


def _refusal(call: Call, shape: str) -> ApiError:
    collection: Any = call.parts[2] if len(call.parts) > 2 else call.parts[0]
    name = _ABSENT.get(collection, shape.replace("/*", "").replace("/", "."))
    return unimplemented(f"storage.{name} ({call.verb})")
