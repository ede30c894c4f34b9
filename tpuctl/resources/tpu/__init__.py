"""TPUs, whichever API sells them: nodes, queued resources, instances and groups of them."""
