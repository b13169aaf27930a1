"""Markup in a speech request."""

import openai
import pytest

from voxcpm_runtime import VoxCPM, pcm16


def test_markup_is_read_where_the_request_asks_for_it(client: openai.OpenAI, tts: VoxCPM) -> None:
    text = "Hello. [pause 0.5s][voice alloy]Hi."
    given = {"model": "tts-1", "voice": "heart", "response_format": "pcm"}
    heard = client.audio.speech.create(input=text, **given, extra_body={"seed": 7, "markup": True}).content
    spoken = tts.generate(text, voice="heart", seed=7, markup=True, retry_badcase=False)
    assert heard == pcm16(spoken).tobytes()
    with pytest.raises(openai.BadRequestError, match=r"markup, line 1, column 1: .*nobody"):
        client.audio.speech.create(input="[voice nobody]Hi.", **given, extra_body={"markup": True})
