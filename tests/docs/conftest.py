"""Tests of this folder share what reads and what runs the blocks of pages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
