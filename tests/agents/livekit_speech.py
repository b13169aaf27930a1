"""LiveKit's own plugins speak a text with a server: `livekit_speech.py SERVICE URL KEY TEXT OUT`.

Writes 16-bit samples at 24 kHz to OUT, and prints a JSON object: seconds until the first audio, words with their
times, errors; of ElevenLabs' also the seconds of the text spoken at once, and the voices. It runs in the environment
of `make test-clients`, where the project is not installed.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp
from livekit.agents import APIConnectOptions
from livekit.plugins import elevenlabs, openai

PATIENCE = APIConnectOptions(max_retry=0, timeout=60)


async def main(name, url, key, text, out):
    audio, words, first, more = bytearray(), [], None, {}
    asked = time.perf_counter()
    errors = []
    async with aiohttp.ClientSession() as session:
        if name == "openai":
            tts = openai.TTS(base_url=f"{url}/v1", api_key=key, voice="alloy")
            speech = tts.synthesize(text, conn_options=PATIENCE)
        else:
            tts = elevenlabs.TTS(
                base_url=f"{url}/v1",
                api_key=key,
                voice_id="alloy",
                encoding="mp3_24000_48",
                http_session=session,
            )
            speech = tts.stream(conn_options=PATIENCE)
            for word in text.split():
                speech.push_text(f"{word} ")
            speech.end_input()
        try:
            async with speech:
                async for event in speech:
                    first = first or time.perf_counter()
                    assert event.frame.sample_rate == 24_000, event.frame.sample_rate
                    audio += bytes(event.frame.data)
                    timed = event.frame.userdata.get("lk.timed_transcripts", [])
                    words += [(str(word), word.start_time) for word in timed]
        except Exception as error:  # noqa: BLE001 - reported to the test
            errors.append(repr(error))
        if name == "elevenlabs":
            whole = await tts.synthesize(text, conn_options=PATIENCE).collect()
            more = {"whole": whole.duration, "voices": [voice.id for voice in await tts.list_voices()]}
        await tts.aclose()
    Path(out).write_bytes(audio)
    told = {"first": None if first is None else first - asked, "words": words, "errors": errors, **more}
    print(json.dumps(told))  # noqa: T201 - its output


asyncio.run(main(*sys.argv[1:]))
