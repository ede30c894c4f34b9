"""Plans, and the concurrent walk of a dependency graph; independent of any cloud."""
