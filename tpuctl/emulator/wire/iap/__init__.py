"""Tunnels of the Identity-Aware Proxy to the machines."""
