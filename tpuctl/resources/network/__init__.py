"""The network of a stack: firewall rules, external addresses, and access without them."""
