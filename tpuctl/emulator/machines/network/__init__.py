"""Connections of machines: addresses, firewall, the gateway to Google, forwarded ports."""
