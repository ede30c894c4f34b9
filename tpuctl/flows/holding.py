"""What a bucket holds, and so what it costs."""

from __future__ import annotations

from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.model.status import Holding

__all__ = ["holding_of"]

MOST_OBJECTS = 20_000  # looked at to find a bucket's size: 20 pages
PAGE = 1000


async def holding_of(
    cloud: Cloud, bucket: str, *, most: int = MOST_OBJECTS, page: int = PAGE
) -> Holding:
    """How much a bucket holds, as far as so many objects tell. Raises what asking raises."""

    def sizes(**options: Any) -> tuple[int, int, bool]:
        found = cloud.client("storage").list_blobs(
            bucket, page_size=page, fields="items(name,size),nextPageToken", **options
        )
        total = count = 0
        for part in found.pages:
            for one in part:
                total += one.size or 0
                count += 1
            if count >= most:
                return total, count, found.next_page_token is None
        return total, count, True

    total, count, is_whole = await cloud.call(f"the size of gs://{bucket}", sizes)
    return Holding(total, count, is_whole)
