"""The queue of a stack: jobs that its controller runs one after another, without a laptop."""
