"""The endpoints in OpenAI's schema: one file each, with its request, its answer and its stream."""
