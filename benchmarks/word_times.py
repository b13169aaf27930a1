"""Errors of word times: the built-in voice beside its teacher, whose phones have known times.

    python benchmarks/word_times.py --kokoro FOLDER      # training/README.md says how to fetch Kokoro

The same recordings are timed by pauses, by letters spread evenly and by Whisper tiny.en, too.

Kokoro speaks each text in the same voice. Dynamic time warping of both recordings moves the known starts of its words
to the recording under test; after pauses, where the start can be seen, that judge is 20 ms off in the median.
"""

from __future__ import annotations

import argparse
import difflib
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.fft

from voxcpm_runtime import VoxCPM
from voxcpm_runtime.words.pauses import letter_times
from voxcpm_runtime.words.words import word_times
from voxcpm_runtime.words.written import said_spans
from voxcpm_training.architecture import SAMPLE_RATE
from voxcpm_training.voices import KokoroVoices, Speaker, Utterance, phonemes
from voxcpm_validation.listening.recognition import Recogniser

Doubles = npt.NDArray[np.float64]
PROSE = Path(__file__).parents[1] / "validation/voxcpm_validation/listening_test/prose"
VOICES = {"heart": "af_heart", "michael": "am_michael", "emma": "bf_emma", "george": "bm_george"}
HOP, WINDOW, BANDS = 120, 600, 40
LEAD = 0.045
"""Seconds by which Kokoro's sound leads its durations: median of the onsets of s, and of words after pauses."""


def teacher(kokoro: KokoroVoices, said: str, voice: str) -> tuple[Doubles, list[float]]:
    """Kokoro's recording (samples,) of a text, and the starts of its words in seconds."""
    read = phonemes(said.replace("-", " "))
    speaker = Speaker((VOICES[voice],))
    spoken = kokoro.speak([Utterance(read, speaker, 1.0)], seed=0)[0]
    starts = []
    for word in re.finditer(r"[^\s,.;:!?—]+", read):
        # The space between two words sounds like the second one, but after a mark it is silent.
        joined = word.start() > 1 and read[word.start() - 2] not in ",.;:!?—"
        starts.append(float(spoken.ends[word.start() - joined]) - LEAD)
    return spoken.audio.astype(np.float64), starts


def cepstra(audio: Doubles) -> Doubles:
    """Normalised cepstra and their slopes (frames, 28), one frame each 5 ms."""
    padded = np.pad(audio, WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(frames, 1024)) ** 2
    mel = 2595 * np.log10(1 + np.fft.rfftfreq(1024, 1 / SAMPLE_RATE) / 700)
    edges = np.linspace(85, 2840, BANDS + 2)[:, None]  # 60 Hz to 8 kHz
    rising, falling = (mel - edges[:-2]) / (edges[1] - edges[0]), (edges[2:] - mel) / (edges[1] - edges[0])
    bands = power @ np.maximum(0, np.minimum(rising, falling)).T
    found = scipy.fft.dct(np.log(bands + 1e-4 * np.percentile(bands, 95)), axis=1, norm="ortho")[:, :14]
    both = np.concatenate([found, 4 * np.gradient(found, 2, axis=0)], 1)
    weights = np.repeat([1.5, 1.0, 0.7], [1, 13, 14])
    return np.asarray((both - both.mean(0)) / (both.std(0) + 1e-6) * weights)


def whisper_starts(whisper: Recogniser, audio: Doubles, words: list[str]) -> dict[int, float]:
    """Whisper's start in seconds of each of the words that it hears, by number."""
    heard = whisper.word_starts(audio.astype(np.float32), SAMPLE_RATE)
    letters = [re.sub("[^a-z']", "", word.lower()) for word, _ in heard]
    matches = difflib.SequenceMatcher(None, words, letters, autojunk=False).get_matching_blocks()
    return {a + n: heard[b + n][1] for a, b, size in matches for n in range(size)}


def warped(first: Doubles, second: Doubles) -> Doubles:
    """For each frame of the first, the frame of the second that it is matched with."""
    squares = (first**2).sum(1)[:, None] + (second**2).sum(1) - 2 * first @ second.T
    distance = np.pad(np.sqrt(np.maximum(squares, 0)), ((1, 0), (1, 0)))
    rows, columns = distance.shape
    total = np.full((rows, columns), np.inf)
    total[0, 0] = 0.0
    steps = ((1, 0, 1.0, 0.3), (0, 1, 1.0, 0.3), (1, 1, 1.5, 0.0))
    for diagonal in range(2, rows + columns - 1):
        i = np.arange(max(1, diagonal - columns + 1), min(rows, diagonal))
        j = diagonal - i
        total[i, j] = np.min([total[i - a, j - b] + w * distance[i, j] + p for a, b, w, p in steps], 0)
    i, j, path = rows - 1, columns - 1, []
    while i and j:
        path.append((i - 1, j - 1))
        a, b, *_ = min(steps, key=lambda s: total[i - s[0], j - s[1]] + s[2] * distance[i, j] + s[3])
        i, j = i - a, j - b
    at, to = np.array(path[::-1]).T
    return np.bincount(at, to) / np.maximum(np.bincount(at), 1)


def sound(audio: Doubles) -> tuple[int, int]:
    """First and last sample of the speech, with a little silence."""
    level = np.convolve(audio**2, np.ones(240) / 240, "same")
    loud = np.flatnonzero(level > level.max() * 1e-4)
    return max(0, int(loud[0]) - 1440), int(loud[-1]) + 2880


def main() -> None:
    """Print the errors of each voice and of all, in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kokoro", type=Path, required=True, help="folder of part-1.bin … and the voices")
    parser.add_argument("--texts", type=int, default=12, help="texts that each voice speaks")
    parser.add_argument("--bundle", help="default: the built-in voice's")
    options = parser.parse_args()
    tts, kokoro = VoxCPM.from_bundle(options.bundle), KokoroVoices(options.kokoro, "cpu")
    whisper = Recogniser()
    prose = " ".join((PROSE / f"{name}.txt").read_text() for name in ("narration", "story", "article"))
    texts = [text for text in re.split(r"(?<=[.!?])[\"”]?\s+", prose) if 40 <= len(text) <= 170]
    texts = [texts[at] for at in np.random.default_rng(4).permutation(len(texts))]
    errors: dict[str, list[float]] = {}
    for number, text in enumerate(texts[: options.texts]):
        for voice in VOICES:
            (segment,) = tts.speak(text, voice=voice, seed=number).segments
            recording, starts = teacher(kokoro, segment.said, voice)
            said = list(re.finditer(r"[a-z']+", segment.said))
            places = [word.start() for word in said]
            if len(places) != len(starts):
                continue  # Kokoro's lexicon has two words for one
            audio = segment.audio.astype(np.float64)
            (begin, end), (other, last) = sound(recording), sound(audio)
            path = warped(cepstra(recording[begin:end]), cepstra(audio[other:last]))
            frames = (np.array(starts) * SAMPLE_RATE - begin) / HOP
            moved = (np.interp(frames, range(len(path)), path) * HOP + other) / SAMPLE_RATE
            known = dict(zip(places, moved, strict=True))
            starts_at = {span.start: at for at, span in enumerate(said_spans(text, segment.said))}
            evenly = np.linspace(other, last, len(segment.said) + 1) / SAMPLE_RATE
            by_pauses = letter_times(segment.said, segment.audio, SAMPLE_RATE)
            times = {
                segment.words[0].method: segment.words,
                "pauses": word_times(text, segment.said, by_pauses),
                "letters spread evenly": word_times(text, segment.said, evenly),
            }
            starts_of = {
                method: {place: words[at].start for place, at in starts_at.items()}
                for method, words in times.items()
            }
            heard = whisper_starts(whisper, audio, [word[0] for word in said])
            starts_of["whisper"] = {places[word]: at for word, at in heard.items()}
            for method, found in starts_of.items():
                for name in (voice, "all"):
                    signed = errors.setdefault(f"{method}, {name}", [])
                    signed.extend(at - known[place] for place, at in found.items() if place in known)
    print("method, voice | words | median | p90 | worst | bias (ms) | median, p90 without it")
    for name, signed in sorted(errors.items()):
        off = 1000 * np.abs(signed)
        bias = 1000 * np.median(signed)
        rest = np.abs(1000 * np.array(signed) - bias)
        figures = (
            np.median(off),
            np.percentile(off, 90),
            off.max(),
            bias,
            np.median(rest),
            np.percentile(rest, 90),
        )
        print(name, len(off), *(f"{figure:.0f}" for figure in figures), sep=" | ")


if __name__ == "__main__":
    main()
