"""Requests and answers: HTTP and gRPC on one port, routes, messages, pages, discovery documents."""
