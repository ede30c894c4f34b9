"""What is told of stacks and jobs: their state, costs, metrics, and why a job ended."""
