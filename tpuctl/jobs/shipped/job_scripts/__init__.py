"""Scripts of jobs that are tpuctl's own: notebooks, and calls of functions."""
