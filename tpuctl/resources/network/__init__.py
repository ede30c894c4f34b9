"""Networks, addresses, and rules of firewalls."""
