"""The XML API's bucket methods, implemented by the JSON API's handlers."""

from __future__ import annotations

import json

from aiohttp import web

from tpuctl.emulator.storage.buckets.buckets import Buckets
from tpuctl.emulator.storage.objects.object_lists import ObjectLists
from tpuctl.emulator.storage.requests.primitives import Answer, Call
from tpuctl.emulator.storage.xml_api.xml_documents import document, parse
from tpuctl.emulator.wire.http_request import Request

# Parameters of a bucket's list of objects, and those of objects.list.
_LIST_PARAMETERS = {
    "prefix": "prefix",
    "delimiter": "delimiter",
    "max-keys": "maxResults",
    "continuation-token": "pageToken",
    "start-after": "startOffset",
}


class XmlBuckets:
    """Answers `/` and `/BUCKET`."""

    def __init__(self, buckets: Buckets, lists: ObjectLists) -> None:
        self._buckets = buckets
        self._lists = lists

    def list_buckets(self, request: Request, project: str) -> web.Response:
        rows, token = [], ""
        while True:
            page = self._call(request, ["b"], {"project": project, "pageToken": token})
            answer = self._buckets.list_all(page).value
            rows += answer.get("items", [])
            token = answer.get("nextPageToken", "")
            if not token:
                break
        buckets = [
            ("Bucket", [("Name", row["name"]), ("CreationDate", row["timeCreated"])])
            for row in rows
        ]
        owner = [("ID", project)]
        return document("ListAllMyBucketsResult", [("Owner", owner), ("Buckets", buckets)])

    async def insert(self, request: Request, name: str, project: str) -> web.Response:
        body = {"name": name}
        content = await request.read()
        if content.strip():
            configuration = parse(content, "CreateBucketConfiguration")
            fields = {"LocationConstraint": "location", "StorageClass": "storageClass"}
            for element, field in fields.items():
                if text := (configuration.findtext(element) or "").strip():
                    body[field] = text
        call = self._call(request, ["b"], {"project": project}, json.dumps(body).encode())
        self._buckets.insert(call)
        return web.Response(status=200)

    def get(self, request: Request, name: str) -> web.Response:
        """A list of objects, in the format of version 2 if requested."""
        query = {
            json_name: request.param(xml_name)
            for xml_name, json_name in _LIST_PARAMETERS.items()
            if request.param(xml_name)
        }
        after = request.param("marker") or query.pop("startOffset", "")
        if after:  # exclusive, while the JSON API's offset is inclusive
            query["startOffset"] = f"{after}\0"
        listed = self._lists.list_all(self._call(request, ["b", name, "o"], query)).value
        items, prefixes = listed.get("items", []), listed.get("prefixes", [])
        token = listed.get("nextPageToken", "")
        is_second = request.param("list-type") == "2"
        last = max([item["name"] for item in items] + prefixes, default="")
        following = ("NextContinuationToken", token) if is_second else ("NextMarker", last)
        return document(
            "ListBucketResult",
            [
                ("Name", name),
                ("Prefix", request.param("prefix")),
                *([("KeyCount", str(len(items) + len(prefixes)))] if is_second else []),
                *([] if is_second else [("Marker", request.param("marker"))]),
                ("IsTruncated", str(bool(token)).lower()),
                *([following] if token else []),
                *(
                    (
                        "Contents",
                        [
                            ("Key", item["name"]),
                            ("Generation", item["generation"]),
                            ("MetaGeneration", item["metageneration"]),
                            ("LastModified", item["updated"]),
                            ("ETag", f'"{item["etag"]}"'),
                            ("Size", item["size"]),
                        ],
                    )
                    for item in items
                ),
                *(("CommonPrefixes", [("Prefix", prefix)]) for prefix in prefixes),
            ],
        )

    def head(self, name: str) -> web.Response:
        self._buckets.load(name)
        return web.Response(status=200)

    def delete(self, request: Request, name: str) -> web.Response:
        answer: Answer = self._buckets.delete(self._call(request, ["b", name], {}))
        return web.Response(status=answer.status)

    @staticmethod
    def _call(request: Request, parts: list[str], query: dict[str, str], body: bytes = b"") -> Call:
        return Call(
            verb=request.verb,
            parts=parts,
            query={key: [value] for key, value in query.items() if value},
            body=body,
            base_url=request.base_url,
            caller=request.caller,
        )
