"""The Python with TensorFlow's operations for TPUs: the environment of `rehearse --compile`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tpuctl.preflight.compile.environments import LOWERING, Environments


def lowering_python() -> Path:
    """Return its interpreter, creating and caching the environment if missing."""
    ensuring = Environments().ensure(LOWERING, lambda line: print(line, file=sys.stderr))
    return asyncio.run(ensuring)
