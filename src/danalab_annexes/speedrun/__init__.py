"""`danalab speedrun`: from text to a chat in one command."""
