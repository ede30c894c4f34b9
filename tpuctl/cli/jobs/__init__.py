"""Commands that check, run, follow and explain jobs."""
