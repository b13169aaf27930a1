"""What Apple's Core AI runtime is compared with: upstream's step models and utterances, and the portable executor's."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import StepModel
from voxcpm_runtime.backends.step_function import Floats, StepFunction
from voxcpm_runtime.options import SEGMENT_TOKENS
from voxcpm_runtime.text.normalization import spelled, spelled_transcript
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.end_to_end import Case, SpokenCase, cases, speak_upstream
from voxcpm_validation.measures import agreement
from voxcpm_validation.reference import RecordedCall, record_reference
from voxcpm_validation.upstream import load_upstream

TEXT = "the you and the world"

Reference = dict[str, list[RecordedCall]]


def recorded(checkpoint: Path, bundle: Path) -> tuple[Any, Reference]:
    """Upstream's model and its result for an utterance."""
    manifest = Manifest.read(bundle)
    model = load_upstream(checkpoint, max_length=manifest.sizes.kv_length)
    return model, record_reference(model, manifest.architecture, manifest.sizes, text=TEXT, patches=6)


def beside_torch(
    declared: StepModel, step: torch.nn.Module, model: StepFunction, chunks: Iterable[int]
) -> list[tuple[list[Floats], list[Floats]]]:
    """Outputs of a step model on Core AI and of its torch module, for calls on noise that pass their states on.

    chunks: of each call, which of the declared lengths.
    """
    state = model.new_state() if declared.state else None
    held = [torch.zeros(t.shape_at(0)) for t in declared.state]
    generator, positions = np.random.default_rng(0), np.zeros(1, np.int32)
    calls = []
    for chunk in chunks:
        given = {
            t.name: positions.copy()
            if t.dtype == "int32"
            else generator.standard_normal(t.shape_at(chunk)).astype(np.float32)
            for t in declared.inputs
        }
        with torch.inference_mode():
            results = step(*(torch.tensor(given[t.name]) for t in declared.inputs), *held)
        results = results if isinstance(results, tuple) else (results,)
        held = list(results[len(declared.outputs) :])
        found = model(given, state)
        expected = {t.name: result.numpy() for t, result in zip(declared.outputs, results, strict=False)}
        names = [t.name for t in declared.at(chunk).outputs]
        calls.append(([found[name] for name in names], [expected[name] for name in names]))
        positions += declared.chunk_lengths[chunk]
    return calls


def spoken(tts: VoxCPM, case: Case) -> SpokenCase:
    speech = tts.speak(
        case.text,
        case.prompt_wav,
        case.prompt_text,
        case.reference_wav,
        rng=np.random.default_rng(case.seed),
        retry_badcase=False,
        min_len=case.min_len,
        max_len=case.max_len,
        every_word=False,
        segment_tokens=SEGMENT_TOKENS,
    )
    return SpokenCase(speech.audio, speech.latents)


def check_utterances(model: Any, core_ai: VoxCPM, portable: VoxCPM) -> list[str]:
    """Compare every mode with upstream and the portable backend, and return the modes' names."""
    tokenizer = core_ai.bundle.tokenizer
    # Both sides get the runtime's normalised texts.
    text, transcript = spelled(TEXT, tokenizer), spelled_transcript(TEXT, tokenizer)
    with core_ai, portable, cases(model, text, patches=12, seed=0, prompt_text=transcript) as utterances:
        for case in utterances:
            upstream = speak_upstream(model, case)
            found = spoken(core_ai, case)
            assert found.latents.shape == upstream.latents.shape
            assert len(found.latents) == 12
            assert agreement(found.latents, upstream.latents).correlation >= 0.99999, case.name
            ours = spoken(portable, case)
            np.testing.assert_allclose(found.audio, ours.audio, rtol=0, atol=1e-4, err_msg=case.name)
        return [case.name for case in utterances]
