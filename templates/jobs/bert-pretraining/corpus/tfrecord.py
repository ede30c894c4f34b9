"""Writes TFRecord files without TensorFlow, for records of equal size.

A record is its length (8 bytes), a checksum of the length, the content, and a checksum of the
content. As all records are equally long, the checksums are computed for all at once, two bytes at
a time.
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import numpy

__all__ = ["checksums", "compress", "frame"]

POLYNOMIAL = 0x82F63B78  # CRC-32C, its bits reversed
LEVEL = 1  # ids hardly repeat: higher levels take several times as long for a few percent


def frame(numbers: Any) -> bytes:
    """Return each row of an array as one record; a row has an even number of bytes."""
    content = numpy.ascontiguousarray(numbers).view(numpy.uint8)
    count, size = content.shape
    records = numpy.empty((count, 8 + 4 + size + 4), numpy.uint8)
    length = numpy.array([[size]], "<u8").view(numpy.uint8)
    records[:, :8] = length
    records[:, 8:12] = checksums(length)
    records[:, 12:-4] = content
    records[:, -4:] = checksums(content)
    return records.tobytes()


def checksums(content: Any) -> Any:
    """Return the masked CRC-32C of each row of bytes, as bytes [N, 4]."""
    table = two_byte_table()
    sums = numpy.full(len(content), 0xFFFFFFFF, numpy.uint32)
    for column in numpy.ascontiguousarray(content.view("<u2").T):
        sums = table[(sums ^ column) & 0xFFFF] ^ (sums >> 16)
    sums = ~sums
    # Masked as the format requires, so that a checksum of bytes that contain checksums works.
    masked = ((sums >> 15) | (sums << 17)) + numpy.uint32(0xA282EAD8)
    return masked.astype("<u4").view(numpy.uint8).reshape(-1, 4)


@cache
def two_byte_table() -> Any:
    """Return the CRC of two zero bytes for each value of its lower half, uint32 [65536]."""
    table = numpy.arange(1 << 16, dtype=numpy.uint32)
    for _ in range(16):
        table = (table >> 1) ^ (table & 1) * numpy.uint32(POLYNOMIAL)
    return table


def compress(content: bytes) -> bytes:
    """Return a gzip member without time or name; concatenated members are a gzip file."""
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return deflate.compress(content) + deflate.flush()
