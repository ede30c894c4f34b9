"""The dashboard: its page, and the server that serves it."""
