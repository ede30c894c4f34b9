"""What a stack costs, and its budget."""
