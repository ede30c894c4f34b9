"""Pipelines that use tpuctl: their files, and what they need in the project."""
