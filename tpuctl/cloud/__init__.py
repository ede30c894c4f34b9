"""The official clients, their endpoints, errors and operations."""
