"""The speakers, and how Kokoro's weights find their modules."""

from __future__ import annotations

import pytest

from voxcpm_training.kokoro_weights import module_path
from voxcpm_training.listening_material import PROMPTS
from voxcpm_training.voices import SPEAKERS

UNHEARD = {"af_nova", "am_echo", "bf_lily", "bm_lewis"}


def test_the_speakers_shares_are_a_whole() -> None:
    assert sum(speaker.share for speaker in SPEAKERS) == pytest.approx(1)
    assert all(speaker.share > 0 for speaker in SPEAKERS)


def test_there_are_541_speakers_by_21_voices() -> None:
    assert len(set(SPEAKERS)) == len(SPEAKERS) == 541
    assert len({voice for speaker in SPEAKERS for voice in speaker.voices}) == 21
    assert sum(len(speaker.voices) > 1 for speaker in SPEAKERS) == 360
    assert sum(speaker.pitch != 1 for speaker in SPEAKERS) == 280
    assert all(sum(speaker.parts) == pytest.approx(1, abs=2e-3) for speaker in SPEAKERS)


def test_unheard_voices_are_not_trained_on() -> None:
    assert not UNHEARD & {voice for speaker in SPEAKERS for voice in speaker.voices}


def test_the_prompts_say_which_voices_are_unheard() -> None:
    assert {voice: unheard for _, voice, _, unheard in PROMPTS} == {
        voice: voice in UNHEARD for _, voice, _, _ in PROMPTS
    }


@pytest.mark.parametrize(
    ("node", "module"),
    [
        ("/encoder/predictor/text_encoder/lstms.4/LSTM_quant", "predictor.text_encoder.lstms.4"),
        ("/encoder/text_encoder/lstm/LSTM_quant", "text_encoder.lstm"),
        ("/encoder/shared/LSTM_quant", "predictor.shared"),
        ("/encoder/F0.1/pool/ConvTranspose", "predictor.F0.1.pool"),
        (
            "/encoder/bert/embeddings/token_type_embeddings/Gather_quant",
            "bert.embeddings.token_type_embeddings",
        ),
        ("/decoder/decoder/decode.0/norm2/fc/Gemm_MatMul_quant", "decoder.decode.0.norm2.fc"),
        (
            "/decoder/decoder/generator/resblocks.1/convs1.2/Conv_quant",
            "decoder.generator.resblocks.1.convs1.2",
        ),
        ("/decoder/decoder/generator/conv_post/Conv", "decoder.generator.conv_post"),
    ],
)
def test_a_node_of_the_export_is_named_after_its_module(node: str, module: str) -> None:
    assert module_path(node) == module
