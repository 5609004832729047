"""Serving: an HTTP API in OpenAI's schema, and the chat page."""
