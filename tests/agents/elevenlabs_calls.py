"""ElevenLabs' official SDK calls a server: elevenlabs_calls.py URL KEY VOICE. Prints what it got as JSON."""

import json
import sys

from elevenlabs.client import ElevenLabs

url, key, voice = sys.argv[1:]
client = ElevenLabs(base_url=url, api_key=key)
speech = client.text_to_speech
# The SDK always uses TLS for websockets.
speech._ws_base_url = url.replace("http", "ws", 1)
said = {"text": "Hello there.", "model_id": "eleven_flash_v2_5", "seed": 7}
told = {
    "convert": len(b"".join(speech.convert(voice, output_format="pcm_24000", **said))),
    "stream": len(b"".join(speech.stream(voice, output_format="ulaw_8000", **said))),
    "timestamps": speech.convert_with_timestamps(voice, **said).alignment.characters,
    "realtime": len(
        b"".join(
            speech.convert_realtime(
                voice, text=iter(["Hello ", "there."]), model_id=said["model_id"], output_format="pcm_24000"
            )
        )
    ),
    "voices": [one.voice_id for one in client.voices.get_all().voices],
    "found": [one.voice_id for one in client.voices.search(search=voice).voices],
    "voice": client.voices.get(voice).name,
    "models": [one.model_id for one in client.models.list()],
}
print(json.dumps(told))  # noqa: T201
