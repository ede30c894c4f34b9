"""TPUs of each kind: nodes, queued resources, instances, and groups of them."""
