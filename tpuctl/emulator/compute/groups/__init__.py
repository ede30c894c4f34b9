"""Managed instance groups: their instances, resize requests and workload policies."""
