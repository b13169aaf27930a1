"""Text that arrives in fragments, over a websocket."""
