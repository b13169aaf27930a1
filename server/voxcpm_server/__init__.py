"""A server that speaks OpenAI's protocol, on the runtime's public API."""
