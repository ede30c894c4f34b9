"""What exists now: resources, jobs, charges, and advice on them."""
