"""Endpoints of the server."""
