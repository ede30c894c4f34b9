"""Tests of the documentation; they share modules that parse and run the blocks of pages."""

from __future__ import annotations
