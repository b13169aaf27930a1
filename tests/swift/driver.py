"""Records results of Python's driver with given noise, for swift/Tests/VoxCPMTests/DriverTests.swift."""

import json

import numpy as np
import numpy.typing as npt

from voxcpm_runtime import VoxCPM

PATCHES = 6
TEXT, TRANSCRIPT = "the river runs to the sea", "we walked home"


class RecordedNoise:
    """Standard normal noise that is recorded."""

    def __init__(self, seed):
        self._generator = np.random.default_rng(seed)
        self.drawn: list[npt.NDArray[np.float32]] = []

    def standard_normal(self, size):
        self.drawn.append(self._generator.standard_normal(size).astype(np.float32))
        return self.drawn[-1]

    @property
    def numbers(self):
        """All numbers drawn."""
        return np.concatenate([*self.drawn, np.zeros(0, np.float32)], axis=None)


def write_case(folder, document, arrays):
    """A case in the format of `Recorded.swift`."""
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(json.dumps(document))
    for name, array in arrays.items():
        np.ascontiguousarray(array, np.float32).tofile(folder / f"{name}.f32")


def record(folder, bundle):
    """Every mode of every precision of a bundle."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    for precision in manifest["precisions"]:
        if precision == "int8" and manifest["kv_cache"] == "stacked":
            # Of trained weights: an ulp moves Python's own latents by 3 %. The test vectors cover it.
            continue
        with VoxCPM.from_bundle(bundle, precision=precision) as tts:
            modes = ["zero-shot", "continuation"]
            modes += ["reference", "combined"] if tts.bundle.architecture.traits.takes_reference else []
            for mode in modes:
                _record(folder / f"{bundle.name}-{precision}-{mode}", bundle, tts, mode)


def _record(folder, bundle, tts, mode):
    a, noise = tts.bundle.architecture, RecordedNoise(7)
    audio = np.random.default_rng(3).standard_normal((2, 5 * a.patch_input_samples + 17)) / 10
    given = {}
    # The full stops that the runtime adds for the built-in voice's checkpoint.
    stop = "." if tts.bundle.manifest.speech else ""
    text, continued, transcript = TEXT + stop, f"{TRANSCRIPT}{stop} ", ""
    if mode in ("continuation", "combined"):
        transcript = continued
        given |= {"prompt_wav_path": (audio[0], a.input_sample_rate), "prompt_text": continued}
    if mode in ("reference", "combined"):
        given["reference_wav_path"] = (audio[1], a.input_sample_rate)
    steps = tts.bundle.manifest.sizes.solver_steps or 10
    # The stop head is not compared: it is ignored for all patches.
    spoken = tts.speak(
        text,
        rng=noise,
        min_len=PATCHES,
        max_len=PATCHES,
        inference_timesteps=steps,
        retry_badcase=False,
        every_word=False,
        zero_shot=True,
        **given,
    )
    prompt_and_text = given.get("prompt_wav_path"), given.get("prompt_text")
    voice = (
        tts.create_voice(*prompt_and_text, reference=given.get("reference_wav_path"), name="x")
        if given
        else None
    )
    none = np.zeros(0, np.float32)
    prompt = none if voice is None or voice.prompt is None else voice.prompt
    reference = none if voice is None or voice.reference is None else voice.reference
    document = {
        "bundle": str(bundle),
        "precision": tts.bundle.precision,
        "steps": steps,
        "tokens": [int(token) for token in tts.bundle.tokenizer(transcript + text)],
    }
    arrays = {
        "noise": noise.numbers[: PATCHES * a.feat_dim * a.patch_size],
        "prompt_audio": audio[0], "reference_audio": audio[1],
        "prompt": prompt, "reference": reference,
        "latents": spoken.latents, "samples": spoken.audio,
    }  # fmt: skip
    write_case(folder, document, arrays)
