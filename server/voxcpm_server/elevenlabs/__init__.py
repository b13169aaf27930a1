"""ElevenLabs' websocket protocol: an optional room."""
