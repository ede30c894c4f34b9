"""Tests of this folder share what reads and what runs the blocks of pages."""

from __future__ import annotations
