"""`VoxCPM`: text in, speech out, with upstream's argument names."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio_file import Audio, AudioSource
from voxcpm_runtime.audio_vae import CONTEXT_PATCHES
from voxcpm_runtime.backends import Backend, load_step_models
from voxcpm_runtime.bundle import Bundle, open_bundle
from voxcpm_runtime.driver import Driver, NoiseSource, Patch, Prefilled
from voxcpm_runtime.one_ahead import one_ahead
from voxcpm_runtime.options import GenerationOptions, checked_options
from voxcpm_runtime.request import Request, build_request
from voxcpm_runtime.sequence import Latents

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from voxcpm_runtime.options import OptionArguments


@dataclass(frozen=True)
class Progress:
    """Told after every patch."""

    patches: int
    audio_seconds: float
    """Of speech, so far."""
    elapsed_seconds: float
    """Since the start of this attempt's prefill."""
    attempt: int
    """From 1; above it, earlier attempts were too long for their text."""

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of speech; below 1 is faster than it is heard."""
        return self.elapsed_seconds / self.audio_seconds


@dataclass(frozen=True)
class Speech:
    """What `speak` gives: the audio, and how it came about."""

    audio: Audio
    """(samples,) in [-1, 1]"""
    sample_rate: int
    latents: Latents
    """Generated patches (patches, frames, latent_dim)."""
    seed: int | None
    """The seed that made this audio, the last attempt's; None with an `rng` of the caller's."""
    attempts: int
    stopped: bool
    """Whether the stop head ended the speech; else its length was at a limit."""
    too_long: bool
    """Whether the last attempt, too, is suspiciously long for its text; always False without `retry_badcase`."""
    elapsed_seconds: float

    @property
    def audio_seconds(self) -> float:
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        return self.elapsed_seconds / self.audio_seconds


class TooLongWarning(UserWarning):
    """Speech of `retry_badcase_ratio_threshold` patches a text token or more: repetition, or noise without an end."""


ProgressCallback = Callable[[Progress], None]


class VoxCPM:
    """A voice; make one with `from_bundle`. Calls share nothing but the weights."""

    def __init__(self, bundle: Bundle, driver: Driver) -> None:
        self.bundle = bundle
        self.driver = driver

    @classmethod
    def from_bundle(
        cls,
        path: str | Path | None = None,
        precision: str | None = None,
        backend: Backend = "auto",
        threads: int | None = None,
        verify: bool = False,
        compute_units: str = "all",
    ) -> VoxCPM:
        """Open a bundle's folder, one of the hub (`organisation/name`) or the default one, and load its step models.

        precision: "int8", "int4", "fp16" or "fp32"; by default the first of these that the bundle has.
        backend: "coreml", "portable", or "auto", Core ML on a Mac. threads: of one operation, portable only.
        verify: hash every file.
        compute_units: "all", "cpu", "cpu_and_gpu" or "cpu_and_ne", Core ML only.

        Raises BundleError and InputError.
        """
        bundle = open_bundle(path, precision, verify=verify)
        models = load_step_models(bundle, backend, threads=threads, compute_units=compute_units)
        return cls(bundle, Driver(bundle.architecture, bundle.manifest.sizes, bundle.constants, models))

    @property
    def sample_rate(self) -> int:
        """Hz of the generated audio."""
        return self.bundle.architecture.output_sample_rate

    def generate(
        self,
        text: str,
        prompt_wav_path: AudioSource | None = None,
        prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None,
        *,
        seed: int | None = None,
        rng: NoiseSource | None = None,
        progress: ProgressCallback | None = None,
        **options: Unpack[OptionArguments],
    ) -> Audio:
        """Speech (samples,) in [-1, 1] at `sample_rate` Hz. Arguments and errors: `speak`."""
        prompt = (prompt_wav_path, prompt_text, reference_wav_path)
        return self.speak(text, *prompt, seed=seed, rng=rng, progress=progress, **options).audio

    def speak(
        self,
        text: str,
        prompt_wav_path: AudioSource | None = None,
        prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None,
        *,
        seed: int | None = None,
        rng: NoiseSource | None = None,
        progress: ProgressCallback | None = None,
        **options: Unpack[OptionArguments],
    ) -> Speech:
        """Speech with its seed, latents and timing.

        prompt_wav_path, prompt_text: audio to continue, and what is said in it. reference_wav_path: a voice to speak
        with (VoxCPM2). options: fields of `GenerationOptions`. seed: of the first attempt; every retry adds 1. rng: a
        source of noise in place of a seed. progress: called after every patch.

        Raises InputError, one line, for anything that cannot be spoken, before any work is done. Warns
        (TooLongWarning) of speech that is suspiciously long for its text in every attempt.
        """
        request = self.request(text, prompt_wav_path, prompt_text, reference_wav_path, **options)
        seed = _checked_seed(seed, rng)
        started = time.perf_counter()
        prefilled = self.driver.prefill(request.sequence)
        spoken: list[tuple[Patch, Audio]] = []
        attempt = 0
        while attempt == 0 or (attempt < _attempts(request.options) and self._is_bad(len(spoken), request)):
            noise = rng if rng is not None else np.random.default_rng(_seed_of(seed, attempt))
            attempt += 1
            began = started if attempt == 1 else time.perf_counter()
            spoken = []
            for patch, audio in self._attempt(request, prefilled, noise):
                spoken.append((patch, audio))
                self._tell(progress, len(spoken), began, attempt)
        last = spoken[-1][0]
        too_long = request.options.retry_badcase and self._is_bad(len(spoken), request)
        if too_long:
            tried = f"{attempt} attempts" if attempt > 1 else "1 attempt"
            _warn_too_long(request, len(spoken), f"after {tried} it is kept as it is")
        _warn_if_cut(request, last)
        return Speech(
            audio=np.concatenate([audio for _, audio in spoken]),
            sample_rate=self.sample_rate,
            latents=np.stack([patch.latents for patch, _ in spoken]),
            seed=None if seed is None else seed + attempt - 1,
            attempts=attempt,
            stopped=last.stops,
            too_long=too_long,
            elapsed_seconds=time.perf_counter() - started,
        )

    def generate_streaming(
        self,
        text: str,
        prompt_wav_path: AudioSource | None = None,
        prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None,
        *,
        seed: int | None = None,
        rng: NoiseSource | None = None,
        progress: ProgressCallback | None = None,
        **options: Unpack[OptionArguments],
    ) -> Iterator[Audio]:
        """The speech of `speak`, a patch (samples,) at a time, as soon as it is known.

        What has been heard cannot be taken back: in place of a retry, TooLongWarning says, as soon as it is known,
        that the speech is suspiciously long for its text. Errors are raised by the call itself, not by the first patch.
        """
        request = self.request(text, prompt_wav_path, prompt_text, reference_wav_path, **options)
        seed = _checked_seed(seed, rng)
        return self._stream(request, rng if rng is not None else np.random.default_rng(seed), progress)

    def request(
        self,
        text: str,
        prompt_wav_path: AudioSource | None = None,
        prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None,
        **options: Unpack[OptionArguments],
    ) -> Request:
        """Check a call's arguments and encode its audio. Raises InputError."""
        options_ = checked_options(**options)
        sources = (prompt_wav_path, prompt_text, reference_wav_path)
        return build_request(self.bundle, self.driver, text, *sources, options_)

    def _stream(
        self, request: Request, noise: NoiseSource, progress: ProgressCallback | None
    ) -> Iterator[Audio]:
        started = time.perf_counter()
        prefilled = self.driver.prefill(request.sequence)
        told = not request.options.retry_badcase
        for patch, audio in self._attempt(request, prefilled, noise):
            self._tell(progress, patch.index + 1, started, 1)
            if not told and self._is_bad(patch.index + 1, request):
                _warn_too_long(request, patch.index + 1, "it cannot be tried again once it is heard")
                told = True
            yield audio
        _warn_if_cut(request, patch)

    def _attempt(
        self, request: Request, prefilled: Prefilled, noise: NoiseSource
    ) -> Iterator[tuple[Patch, Audio]]:
        """Each patch with its audio, which is decoded while the next patch is predicted."""
        decode = self.driver.patch_decoder(request.sequence)
        patches = self.driver.generate_patches(prefilled, request.options, noise, request.limit)
        for patch in one_ahead(patches):
            yield patch, decode(patch.latents)

    def _tell(self, progress: ProgressCallback | None, patches: int, started: float, attempt: int) -> None:
        if progress is not None:
            seconds = patches * self.bundle.architecture.patch_seconds
            progress(Progress(patches, seconds, time.perf_counter() - started, attempt))

    def _is_bad(self, patches: int, request: Request) -> bool:
        """Too long for its text. Upstream counts the decoder's context as well for VoxCPM, and not for VoxCPM2."""
        generation = self.bundle.architecture.architecture
        if generation == "voxcpm":
            patches += len(request.sequence.decoder_context(CONTEXT_PATCHES[generation]))
        return patches >= request.target_tokens * request.options.retry_badcase_ratio_threshold


def _attempts(options: GenerationOptions) -> int:
    return options.retry_badcase_max_times if options.retry_badcase else 1


def _checked_seed(seed: int | None, rng: NoiseSource | None) -> int | None:
    """The seed, or a fresh one, so that every speech can be made again; None where the caller brings the noise."""
    if rng is not None:
        if seed is not None:
            raise InputError("give a seed or an rng, not both")
        return None
    if seed is None:
        return secrets.randbits(32)
    return _whole_number(seed)


def _whole_number(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be a whole number from 0, got {seed!r}")
    return int(seed)


def _seed_of(seed: int | None, attempt: int) -> int | None:
    return None if seed is None else seed + attempt


def _warn_too_long(request: Request, patches: int, then: str) -> None:
    warnings.warn(
        f"the speech is suspiciously long for its text ({patches} patches for {request.target_tokens} tokens); {then}; "
        "another seed may do better",
        TooLongWarning,
        stacklevel=3,
    )


def _warn_if_cut(request: Request, last: Patch) -> None:
    if request.limited_by_cache and not last.stops and last.index + 1 == request.limit:
        warnings.warn(
            f"the speech was cut off after {request.limit} patches: the KV cache is full; "
            "shorten the text or the prompt, or convert with a greater --max-length",
            stacklevel=3,
        )
