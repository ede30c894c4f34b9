"""Preconditions of Cloud Storage, as documented on its page on request preconditions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

BUCKET = "conditions"

# Whether the object is there; the condition, with G and M for its generation and metageneration;
# the status of a write, of a metadata read, and of a deletion.
TABLE = [
    (True, {}, 200, 200, 204),
    (True, {"ifGenerationMatch": "G"}, 200, 200, 204),
    (True, {"ifGenerationMatch": "1"}, 412, 412, 412),
    (True, {"ifGenerationMatch": "0"}, 412, 412, 412),
    (True, {"ifGenerationNotMatch": "G"}, 304, 304, 304),
    (True, {"ifGenerationNotMatch": "1"}, 200, 200, 204),
    (True, {"ifGenerationNotMatch": "0"}, 200, 200, 204),
    (True, {"ifMetagenerationMatch": "M"}, 200, 200, 204),
    (True, {"ifMetagenerationMatch": "9"}, 412, 412, 412),
    (True, {"ifMetagenerationNotMatch": "M"}, 304, 304, 304),
    (True, {"ifMetagenerationNotMatch": "9"}, 200, 200, 204),
    (True, {"ifGenerationMatch": "G", "ifMetagenerationMatch": "M"}, 200, 200, 204),
    (True, {"ifGenerationMatch": "G", "ifMetagenerationMatch": "9"}, 412, 412, 412),
    (True, {"ifGenerationMatch": "many"}, 400, 400, 400),
    (False, {}, 200, 404, 404),
    (False, {"ifGenerationMatch": "0"}, 200, 404, 404),
    (False, {"ifGenerationMatch": "1"}, 412, 404, 404),
    (False, {"ifGenerationNotMatch": "0"}, 304, 404, 404),
    (False, {"ifGenerationNotMatch": "1"}, 200, 404, 404),
    (False, {"ifMetagenerationMatch": "1"}, 412, 404, 404),
]


@pytest.mark.parametrize(("exists", "condition", "write", "read", "delete"), TABLE)
def test_objects(
    cloud: Any, exists: bool, condition: dict[str, str], write: int, read: int, delete: int
) -> None:
    def upload(kind: str, query: dict[str, str]) -> int:
        path = f"/upload/storage/v1/b/{BUCKET}/o"
        params = {"uploadType": kind, "name": "o", **query}
        answer = cloud.request("POST", path, params=params, data=b"x" if kind == "media" else b"{}")
        if kind == "resumable" and answer.status_code == 200:
            address = answer.headers["Location"].removeprefix(cloud.url)
            answer = cloud.request("PUT", address, data=b"x")
        return int(answer.status_code)

    def prepare() -> dict[str, str]:
        path = f"/storage/v1/b/{BUCKET}/o/o"
        cloud.request("DELETE", path)
        if not exists:
            return condition
        upload("media", {})
        resource = cloud.request("PATCH", path, json={"metadata": {"a": "b"}}).json()
        assert resource["metageneration"] == "2"
        values = {"G": resource["generation"], "M": resource["metageneration"]}
        return {key: values.get(value, value) for key, value in condition.items()}

    cloud.request("POST", "/storage/v1/b?project=local-project", json={"name": BUCKET})
    path = f"/storage/v1/b/{BUCKET}/o/o"
    assert upload("media", prepare()) == write
    assert upload("resumable", prepare()) == write
    query = prepare()
    assert cloud.request("GET", path, params=query).status_code == read
    assert cloud.request("GET", path, params={**query, "alt": "media"}).status_code == read
    answer = cloud.request("PATCH", path, params=query, json={"cacheControl": "no"})
    assert answer.status_code == read
    query = prepare()
    answer = cloud.request("DELETE", path, params=query)
    assert answer.status_code == delete
    if delete == 412:
        error = answer.json()["error"]
        assert error["errors"][0]["reason"] == "conditionNotMet"
        assert error["message"] == (
            "At least one of the pre-conditions you specified did not hold."
        )


async def test_only_one_client_acquires_lock(cloud: Any) -> None:
    await asyncio.to_thread(
        cloud.request, "POST", "/storage/v1/b?project=local-project", json={"name": BUCKET}
    )
    path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=lock&ifGenerationMatch=0"

    def take(who: int) -> int:
        return int(cloud.request("POST", path, data=str(who).encode()).status_code)

    answers = await asyncio.gather(*(asyncio.to_thread(take, who) for who in range(8)))
    assert sorted(answers) == [200] + [412] * 7
