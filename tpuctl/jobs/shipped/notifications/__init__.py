"""Notifications of what happens to jobs and machines, sent to a webhook."""
