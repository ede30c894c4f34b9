"""Plans, costs, the status of a stack, and resources that stacks left behind, on stdout."""
