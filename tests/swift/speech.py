"""Records what Python speaks, for the tests of the Swift package.

Each case is a folder with case.json and arrays of float32.
"""

import copy
import json

import numpy as np
import pytest

from swift.driver import RecordedNoise, write_case
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_runtime import VoxCPM
from voxcpm_runtime.audio.reading import resample, trim_silence
from voxcpm_runtime.audio.stretching import Stretching
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech import gathering
from voxcpm_runtime.speech.budget import max_segment_tokens
from voxcpm_runtime.speech.expected_length import expected_length
from voxcpm_runtime.voices.store import built_in_voices
from voxcpm_runtime.voices.voice import Turn, Voice, VoiceHeader
from voxcpm_runtime.words import attention, pauses
from voxcpm_runtime.words.coverage import Follower, word_counts
from voxcpm_runtime.words.words import word_times

SHORT = "the river runs to the sea"
LONG = "The river runs. It ran all night, and we walked home.\n\nThe sea was far. We sat by the fire and talked of it."
CUT, AGAIN = "Hello there, my friend. How are you today?", "It is raining again. Please close the window."
TIMED = (
    "Hello there.",
    "It cost $4.20 in 1999, and we paid with 3 coins; nobody asked why.",
    "Ada, Max and Tom's sister left.",
    "At 14:30 we left the old house. The rain had stopped, the road was empty, and the lamps were out.",
)
MARKED_UP = (
    "[pause 0.2s]The river runs. <sub alias='It ran'>X</sub> all night, Nguyen. <s>And we walked</s> home, so far, and "
    "sat.[voice ada]Nguyen sat by the fire.[/voice], far.<p>The sea was far.</p> [rate 1.4]We talked of it. "
    "[spell]a1[/spell][pause 1.5s]"
)
MARKUP = {
    "markup": True, "lexicon": {"far": "near by"}, "max_len": 300, "min_len": 2,
    "retry_badcase_ratio_threshold": 0.1, "retry_badcase": False,
}  # fmt: skip
PROSE = (
    "The door opened slowly, and nobody came in. We waited for a while in the dark hall, and listened to the rain on "
    "the roof. Then somebody laughed.\n\nIt was the old man from the mill. He had lost his key, and his lamp, and "
    "every coin he owned. We gave him tea, and a chair by the fire, and asked him nothing until he was warm again."
)


class HalfStates:
    """A step model whose state is rounded to float16 after each call, as Core ML keeps it; Python keeps float32."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def __call__(self, inputs, state=None):
        """The outputs of the step model."""
        outputs = self._model(inputs, state)
        for name, array in getattr(state, "_now", {}).items():
            if self._model._caches[name].dtype == "FLOAT16":
                array[:] = array.astype(np.float16)
        return outputs


def arithmetic_of_core_ml(tts):
    """Let the step models whose state the caller keeps round it; the stand-in for Core ML keeps the others' itself."""
    manifest = tts.bundle.manifest
    kept = {
        part.name
        for name in manifest.step_models
        for part in manifest.parts(name)
        if manifest.form(part).state == "native"
    }
    models = {n: m if n in kept else HalfStates(m) for n, m in tts.driver.models.items()}
    tts._driver = copy.copy(tts.driver)
    tts._driver.models = models


def record(folder, bundles):
    """All cases."""
    record_lengths(folder / "lengths")
    record_words(folder / "words")
    record_coverage(folder / "coverage")
    record_files(folder / "voices")
    for bundle in (DEFAULT_BUNDLE, *bundles):
        precisions = json.loads((bundle / "manifest.json").read_text())["precisions"]
        for precision in precisions:
            with VoxCPM.from_bundle(bundle, precision=precision) as tts:
                arithmetic_of_core_ml(tts)
                record_speech(folder / "speech", tts, bundle)


def record_speech(folder, tts, bundle):
    """Speech of one bundle in one precision, in all modes that it has."""
    a = tts.bundle.architecture
    stem = f"{bundle.name}-{tts.bundle.precision}"
    sound = np.random.default_rng(3).standard_normal(9 * a.patch_input_samples + 17).astype(np.float32) / 10
    prompt = tts.create_voice((sound, a.input_sample_rate), "we walked home ", name="prompt")
    is_built_in = bundle == DEFAULT_BUNDLE
    # Heads of random weights follow nothing: what is recorded of the driver does not depend on them.
    small = {"max_len": 6, "min_len": 4, "retry_badcase": False}
    cases = {
        "zero": (SHORT, None, small),
        "continued": (SHORT, prompt, small),
        "segments": (LONG, None, {"segment_tokens": 12, "max_len": 40, "min_len": 2, "retry_badcase": False}),
        "voiced": (LONG, prompt, {"segment_tokens": 12, "max_len": 30, "min_len": 2, "paragraph_pause": 0.1}),
        "retried": (SHORT, None, {"retry_badcase_ratio_threshold": 0.3, "min_len": 1}),
        "guided": (SHORT, None, {**small, "cfg_value": 1.5, "inference_timesteps": 4, "temperature": 0.8}),
        "plain": (SHORT, None, {**small, "use_cfg_zero_star": False, "sway_sampling_coef": -0.5}),
        # Noise of one's own seed, and of the seeds of later segments and of attempts.
        "seeded": (
            LONG,
            None,
            {"segment_tokens": 12, "max_len": 40, "seed": 5, "retry_badcase_ratio_threshold": 0.5},
        ),
        "marked-segments": (MARKED_UP, None, {"segment_tokens": 30, **MARKUP}),
        "marked-voiced": (MARKED_UP, prompt, MARKUP),
        "normalized": ("It cost $4.20 in 1999, & more!", None, {**small, "normalize": True}),
    }
    if a.traits.takes_reference:
        reference = tts.create_voice(reference=(sound, a.input_sample_rate), name="reference")
        both = tts.create_voice(
            (sound, a.input_sample_rate),
            "we walked home ",
            name="both",
            reference=(sound[::-1], a.input_sample_rate),
        )
        cases["reference"] = (SHORT, reference, small)
        cases["both"] = (SHORT, both, small)
        cases["control"] = (SHORT, None, {**small, "control": "warm, slow"})
        cases["control-segments"] = (LONG, None, {"segment_tokens": 12, "max_len": 40, "control": "warm"})
        cases["bracket"] = (f" (warm, slow) {SHORT}", None, small)
        given = {"segment_tokens": 12, "max_len": 40}
        cases["bracket-segments"] = (f"(An old man. He is calm.){LONG}", None, given)
        cases["control-reference"] = (
            LONG,
            reference,
            {"segment_tokens": 12, "max_len": 24, "control": "warm"},
        )
    if is_built_in:
        voice = built_in_voices()["heart"]
        # In int8 these weights multiply a last bit: Python against itself differs by 0.16 in the first patch and 0.7 in
        # the third.
        few = {"max_len": 1, "min_len": 1}
        cases = {"zero": (SHORT, None, few), "continued": (SHORT, voice, few), "voiced": (PROSE, voice, few)}
    if not is_built_in:
        cases = {name: (text, voice, {**o, "every_word": False}) for name, (text, voice, o) in cases.items()}
        if tts.bundle.manifest.sizes.alignment:
            # Jumps at random, which are repaired.
            given = {"segment_tokens": 12, "max_len": 60, "seed": 3, "retry_badcase": False, "speed": 0.8}
            cases["followed"] = (LONG, prompt, given)
    for name, (text, voice, options) in cases.items():
        # Short speech is enough for quantised arithmetic, whose rounding decides where it stops.
        if (
            tts.bundle.precision in ("int8", "int4")
            and not is_built_in
            and name not in ("zero", "continued", "guided")
        ):
            continue
        write_speech(folder / f"{stem}-{name}", tts, bundle, text, voice, options)
    if not is_built_in:
        pushed = ["The river runs. It ", "ran all night.\n\nThe sea", " was far. We"]
        write_session(folder / f"{stem}-session", tts, bundle, prompt, pushed)
        if a.traits.takes_reference:
            pushed = ["(Wa", "rm. Slow.) The river ", "runs. It ran all night."]
            write_session(folder / f"{stem}-bracket-session", tts, bundle, reference, pushed)
        write_rooms(folder / f"{stem}-rooms", tts, bundle, prompt)


def write_speech(folder, tts, bundle, text, voice, options):
    """One speech."""
    noise = RecordedNoise(7)
    given = {} if "seed" in options else {"rng": noise}
    sound = np.random.default_rng(9).standard_normal(5 * tts.bundle.architecture.patch_input_samples) / 10
    rate = tts.bundle.architecture.input_sample_rate
    ada = tts.create_voice((sound, rate), "home ", name="ada", lexicon={"nguyen": "nwen", "far": "away"})
    common = {"voice": voice, "zero_shot": True, "find_voice": {"ada": ada}.get, **options}
    planned = tts.plan(text, **common).segments
    speech = tts.speak(text, **given, **common)
    folder.mkdir(parents=True)
    ada.save(folder / "ada.voice")
    write(
        folder, bundle, tts, voice, noise, speech.latents, speech.audio,
        text=text, options=options,
        segments=[
            {
                "text": s.text, "patches": len(s.latents), "attempts": s.attempts, "stopped": s.stopped,
                "reason": s.reason, "ends_paragraph": s.ends_paragraph, "expected": s.expected_seconds,
                "samples": len(s.audio), "words": [word._asdict() for word in s.words],
            }
            for s in speech.segments
        ],
        planned=[
            {
                "text": p.text, "said": p.said, "transcript": p.transcript, "tokens": [int(t) for t in p.tokens],
                "transcript_tokens": [int(t) for t in p.transcript_tokens],
                "target": p.target_tokens, "letters": p.letters, "anchors": p.anchors, "followed": bool(p.followed),
                "ends_paragraph": p.ends_paragraph, "voice": p.voice and p.voice.name, "before": p.before,
                "after": p.after, "speed": p.speed,
            }
            for p in planned
        ],
    )  # fmt: skip


def write_rooms(folder, tts, bundle, voice):
    """Tokens of the longest segment, by patches per token and by the other contents of the KV cache."""
    rooms = []
    for ratio in np.linspace(0.1, 7, 40):
        options = {"retry_badcase_ratio_threshold": float(ratio)}
        plans = [tts.plan(SHORT, voice=given, **options) for given in (None, voice)]
        longest = [
            max_segment_tokens(plan, anchored=anchored) for plan in plans for anchored in (False, True)
        ]
        rooms.append({"ratio": float(ratio), "longest": longest})
    none = np.zeros(0, np.float32)
    write(folder, bundle, tts, voice, RecordedNoise(0), none, none, rooms=rooms)


def write_session(folder, tts, bundle, voice, pushed):
    """A session, whose 16-bit samples are written as floats."""
    noise = RecordedNoise(8)
    options = {"min_len": 2, "max_len": 4, "every_word": False}
    with tts.session(voice=voice, rng=noise, **options) as session:
        for text in pushed:
            session.push_text(text)
        session.flush()
        samples = np.concatenate([chunk.pcm for chunk in session])
    write(
        folder, bundle, tts, voice, noise, np.zeros(0, np.float32), samples.astype(np.float32) / 32767,
        pushed=pushed, options=options,
    )  # fmt: skip


def write(
    folder, bundle, tts, voice, noise, latents,
    samples, **case,
):  # fmt: skip
    """The files of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    if voice is not None:
        voice.save(folder / "case.voice", overwrite=True)
    for name, array in (("noise", noise.numbers), ("latents", latents), ("samples", samples)):
        np.asarray(array, np.float32).tofile(folder / f"{name}.f32")
    document = {**case, "bundle": str(bundle), "precision": tts.bundle.precision, "voiced": voice is not None}
    (folder / "case.json").write_text(json.dumps(document))


def record_words(folder):
    """The attention and samples of speech by the built-in voice, and the times that its words have by both methods."""
    followed = []

    def letter_times(said, places, rows, shifts, patch, audio, rate):
        followed.append({"said": said, "places": [*places], "shifts": shifts, "rows": rows, "patch": patch})
        return attention.letter_times(said, places, rows, shifts, patch, audio, rate)

    with pytest.MonkeyPatch.context() as patched, VoxCPM.from_bundle() as tts:
        patched.setattr(gathering, "letter_times", letter_times)
        for number, text in enumerate(TIMED):
            (segment,) = tts.speak(text, seed=number, retry_badcase=False).segments
            case, rate = followed.pop(), segment.sample_rate
            times = pauses.letter_times(segment.said, segment.audio, rate)
            by_pauses = [word._asdict() for word in word_times(text, segment.said, times, start=1.5)]
            by_attention = [word._asdict() for word in segment.words]
            rows = case.pop("rows")
            case |= {
                "text": text,
                "rate": rate,
                "pauses": by_pauses,
                "attention": by_attention,
                "shape": rows.shape,
            }
            write_case(folder / str(number), case, {"samples": segment.audio, "rows": rows})


def record_coverage(folder):
    """Attention to complete, cut and repeated speech, and what `Follower` makes of each patch."""
    rng = np.random.default_rng(1)
    cases = {
        "whole": (AGAIN, [*range(0, 45, 3), 44]),
        "cut": (CUT, [*range(0, 23, 2), *[22] * 16]),
        "again": (CUT, [*range(0, 42, 3), 41, *range(24, 42, 3)]),
        "skipped": (CUT, [0, 3, 6, 9, 12, *range(31, 42, 3)]),
        "elsewhere": (CUT, [0, 3, 30, 9, 12, 15, 40, 40, 24, 27, 30, 33, 36, 39, 41]),
        "chinese": ("今天下雨了。请关上窗户。", [0, 1, 2, 3, 4, 5, 0, 1, 2, 6, 7, 8, 9, 10]),
    }
    for name, (text, way) in cases.items():
        said = text.lower()
        rows = rng.uniform(0.0005, 0.002, (len(way), 2, 3 + len(said))).astype(np.float32)
        for row, place in zip(rows, way, strict=True):
            row[:, 3 + place] = 1
        follower = Follower(said, range(len(said)), slice(3, 3 + len(said)))
        ends = [follower.ends(stops=True, attention=row) for row in rows]
        repairs = [follower.repair_from(patch, patch % 5, patch % 3) for patch in range(len(rows) + 1)]
        counts = follower.counts()
        case = {
            "text": text, "said": said, "shape": rows.shape, "ends": ends, "counts": counts,
            "repairs": [-1 if again is None else again for again in repairs],
            "words": word_counts(text, said, counts),
        }  # fmt: skip
        write_case(folder / name, case, {"rows": rows})


def record_lengths(folder):
    """Lengths by both rules, and bounds, for random figures; and numpy's noise."""
    rng, rows = np.random.default_rng(5), []
    for _ in range(500):
        letters, tokens, context = (int(n) for n in rng.integers(0, (300, 200, 4)))
        least, patches, ratio = (
            int(rng.integers(0, 20)),
            int(rng.integers(1, 300)),
            float(rng.uniform(0.1, 10)),
        )
        profile = SpeechProfile(
            longest_seconds=20, longest_tokens=240, seconds_per_letter=float(rng.uniform(0.03, 0.1)),
            seconds_beside=float(rng.uniform(0, 0.5)), language="en",
        )  # fmt: skip
        speed = float(rng.uniform(0.8, 1.5))
        by_profile = expected_length(profile, letters, 0.16, pace=speed, min_len=least)
        options = GenerationOptions(min_len=least, retry_badcase_ratio_threshold=ratio)
        rows.append(
            {
                "letters": letters, "tokens": tokens, "context": context, "min_len": least, "patches": patches,
                "ratio": ratio, "pace": speed, "per_letter": profile.seconds_per_letter,
                "beside": profile.seconds_beside, "bound": options.patch_bound(tokens),
                "expected": [
                    by_profile.seconds, by_profile.long_from, by_profile.short_below, by_profile.maximum,
                    by_profile.badness(patches, stopped=True)[1],
                ],
                "reason": by_profile.reason(patches, stopped=True),
                "upstream": max(tokens * ratio - context, least + 3),
            }
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lengths.json").write_text(json.dumps(rows))
    for seed in (7, 2**40):
        np.random.default_rng(seed).standard_normal(50_000).astype(np.float32).tofile(folder / f"{seed}.f32")


def record_files(folder):
    """A voice with every kind of character, and a resampled sound."""
    folder.mkdir(parents=True, exist_ok=True)
    text = 'Ünï "q" \\ \t\n\r\x01\x08\x0c\x1f\x7f\x85 中文 \u2028 🙂 e\u0301 / \U00010000'
    header = VoiceHeader(
        name="näme 🙂", generation="voxcpm2", latent_space="0123456789abcdef", sample_rate=16000,
        turns=(Turn(text=text, patches=2), Turn(text="more ", patches=1)), provenance={"a": text, "b": "中"},
    )  # fmt: skip
    numbers = np.random.default_rng(4).standard_normal((5, 4, 8)).astype(np.float32)
    Voice(header, numbers[:3], numbers[3:]).save(folder / "every.voice", overwrite=True)
    (folder / "every.json").write_text(json.dumps({"text": text, "name": header.name}))
    numbers.tofile(folder / "every.f32")
    time = np.arange(44100) / 44100
    sound = (0.3 * np.sin(2 * np.pi * 440 * time) + 0.2 * np.sin(2 * np.pi * 3100 * time)).astype(np.float32)
    sound.tofile(folder / "sound.f32")
    quiet = np.random.default_rng(6).standard_normal(60000).astype(np.float32)
    quiet *= np.where((np.arange(60000) > 21000) & (np.arange(60000) < 33000), 0.2, 0.0005).astype(np.float32)
    quiet.tofile(folder / "quiet.f32")
    trim_silence(quiet, 16000).tofile(folder / "quiet-trimmed.f32")
    for speed in (0.5, 1.3):
        stretch = Stretching(speed, 16000)
        pieces = [
            stretch(quiet[at : at + 700], last=at + 700 >= len(quiet)) for at in range(0, len(quiet), 700)
        ]
        np.concatenate(pieces).tofile(folder / f"quiet-at-{speed}.f32")
    for rate in (16000, 24000, 48000):
        resample(sound, 44100, rate).tofile(folder / f"sound-{rate}.f32")
