"""Training's checkpoint is readable by upstream and the conversion; its phrases exclude the evaluation's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.voxcpm import expected_shapes
from voxcpm_training import export
from voxcpm_training.architecture import CONFIG, HOP, LATENT, PATCH
from voxcpm_training.audio_vae_modules import AudioVAE
from voxcpm_training.corpus import kept, phrases
from voxcpm_training.language_model_modules import VoxCPM
from voxcpm_training.text import AUDIO_START, character_ids, encode, is_speakable
from voxcpm_validation.upstream import load_upstream


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[AudioVAE, VoxCPM, Path]:
    """Networks with random weights and running statistics of noise, and the checkpoint that they are exported to."""
    folder = tmp_path_factory.mktemp("training")
    torch.manual_seed(0)
    vae, model = AudioVAE(CONFIG["audio_vae_config"]), VoxCPM(CONFIG)
    with torch.no_grad():
        for _ in range(3):
            vae.encode(0.1 * torch.randn(2, 1, 8 * HOP))  # the running mean and variance of the latents
    # What the files hold: fp16.
    for parameter in (*vae.parameters(), *model.parameters()):
        parameter.data = parameter.data.half().float()
    torch.save(vae.state_dict(), folder / "vae.pt")
    torch.save(model.state_dict(), folder / "lm.pt")
    export.write_checkpoint(folder / "vae.pt", folder / "lm.pt", folder / "checkpoint")
    return vae.eval(), model.eval(), folder / "checkpoint"


def test_the_exported_weights_are_those_of_the_architecture(untrained):
    checkpoint = Checkpoint.open(str(untrained[2]))
    assert checkpoint.shapes() == expected_shapes(checkpoint.architecture)


@torch.no_grad()
def test_upstream_computes_what_was_trained(untrained):
    vae, model, folder = untrained
    upstream = load_upstream(folder)
    audio = 0.1 * torch.randn(1, 1, 12 * HOP)
    latents = vae.encode(audio)
    torch.testing.assert_close(upstream.audio_vae.encode(audio[:, 0], 16000), latents, atol=5e-3, rtol=5e-3)
    torch.testing.assert_close(upstream.audio_vae.decode(latents), vae.decoder(latents), atol=2e-3, rtol=2e-3)

    patches = torch.randn(3, PATCH, LATENT)
    embedded = model.enc_to_lm_proj(model.feat_encoder(patches))
    theirs = upstream.enc_to_lm_proj(upstream.feat_encoder(patches[None]))[0]
    torch.testing.assert_close(theirs, embedded, atol=1e-4, rtol=1e-4)

    x = torch.randn(2, 9, CONFIG["lm_config"]["hidden_size"])
    for name in ("base_lm", "residual_lm"):
        hidden, _ = getattr(upstream, name)(inputs_embeds=x, is_causal=True)
        torch.testing.assert_close(hidden, getattr(model, name)(x, causal=True), atol=1e-4, rtol=1e-4)

    t, mu = torch.rand(3), torch.randn(3, CONFIG["dit_config"]["hidden_dim"])
    velocity = model.feat_decoder.estimator(patches, mu, t, patches.flip(0))
    theirs = upstream.feat_decoder.estimator(patches.mT, mu, t, patches.flip(0).mT, torch.zeros(3)).mT
    torch.testing.assert_close(theirs, velocity, atol=1e-4, rtol=1e-4)


def test_characters_are_the_tokens_of_tokenizer_json():
    from tokenizers import Tokenizer

    ids = character_ids()
    text = "it's a cold, clear day."
    path = Path(export.__file__).with_name("tokenizer.json")
    assert encode(text, ids).tolist() == Tokenizer.from_file(str(path)).encode(text).ids
    assert AUDIO_START not in ids.values()


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The cat sat on the mat!", ["the cat sat on the mat."]),
        (
            "``We won't go,'' she said quietly; they stayed at home.",
            ["we won't go.", "she said quietly.", "they stayed at home."],
        ),
        ("In 1984 it rained", []),
        ("Yes", []),
    ],
)
def test_phrases_of_a_sentence(sentence: str, expected: list[str]) -> None:
    found = list(phrases(sentence))
    assert found == expected
    assert all(is_speakable(phrase) for phrase in found)


def test_held_out_sentences_are_never_trained_on():
    known = frozenset(
        [
            "the",
            "old",
            "farmer",
            "fed",
            "his",
            "chickens",
            "before",
            "sunrise",
            "quick",
            "brown",
            "dog",
            "ran",
            "home",
        ]
    )
    held_out = ["the old farmer fed his chickens before sunrise."]
    candidates = [
        "the old farmer fed his chickens before sunrise.",
        "brown farmer fed his chickens before dog.",
        "the quick brown dog ran home.",
        "the quick brown dog ran home.",
        "the quick zebra ran home.",
    ]
    assert list(kept(candidates, held_out, known)) == ["the quick brown dog ran home."]


def test_batches_hold_text_then_audio_then_the_stop() -> None:
    """Decode a packed batch by hand: every patch follows its text, and the last one stops."""
    from voxcpm_training.batches import Sampler
    from voxcpm_training.speech import Utterances

    rng, ids = np.random.default_rng(0), character_ids()
    texts = [
        encode(t, ids) for t in ("one bird sang.", "two birds flew away.", "it rained.", "they came home.")
    ]
    frames = np.array([8, 12, 4, 16], np.int64)
    utterances = Utterances(
        text=np.concatenate(texts), characters=np.array([len(t) for t in texts]),
        phones=rng.integers(0, 5, frames.sum()).astype(np.uint8), frames=frames, speaker=np.zeros(4, np.uint8),
    )  # fmt: skip
    nothing = int(frames.sum()) // PATCH
    seen = []
    for batch in Sampler(utterances, 32, 0.0, 0).epoch():
        flat = batch.tokens.reshape(-1)
        real = batch.patches != nothing
        seen += batch.patches[real].tolist()
        for place, patch, before, last in zip(
            batch.places[real], batch.patches[real], batch.before[real], batch.last[real], strict=True
        ):
            starts = np.concatenate(([0], np.cumsum(frames // PATCH)))
            assert last == (patch + 1 in starts[1:])
            if patch in starts:
                assert flat[place - 1] == AUDIO_START
                assert before == nothing
            else:
                assert before == patch - 1
    assert sorted(seen) == list(range(nothing))
