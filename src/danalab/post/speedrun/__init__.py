"""From text to a chat in one command."""
