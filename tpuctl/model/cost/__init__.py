"""What TPUs and stacks cost: prices, budgets, and the cost of races between zones."""
