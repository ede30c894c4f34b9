"""Commands for coding agents: `skill` and `mcp`."""
