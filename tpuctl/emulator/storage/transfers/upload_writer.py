"""Writes an uploaded stream to a file while computing its checksums."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tpuctl.emulator.storage.requests.primitives import Hasher

BATCH_BYTES = 1 << 20
# A separate pool: all threads of the loop's default one may be waiting for an upload.
_WRITERS = ThreadPoolExecutor(4, "pour")


async def write_stream(
    path: Path, hasher: Hasher, chunks: AsyncIterator[bytes], mode: str = "wb"
) -> None:
    """Write a stream to a file. If the sender fails, the data received before is in the file.

    Writing and hashing take as long as receiving, so large bodies are processed by a thread, in
    batches.
    """
    loop = asyncio.get_running_loop()
    writing: asyncio.Future[None] | None = None
    batch: list[bytes] = []
    size = 0
    with path.open(mode) as out:

        def put(batch: list[bytes]) -> None:
            for chunk in batch:
                out.write(chunk)
                hasher.update(chunk)

        try:
            async for chunk in chunks:
                batch.append(chunk)
                size += len(chunk)
                if size >= BATCH_BYTES:
                    if writing is not None:
                        await writing
                    writing = loop.run_in_executor(_WRITERS, put, batch)
                    batch, size = [], 0
        finally:
            if writing is not None:
                await writing
            put(batch)
