"""One utterance: patches and their audio, once or until an attempt is good."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from voxcpm_runtime.audio.files import Audio
from voxcpm_runtime.model.driver import Driver, NoiseSource, Patch, Prefilled, Prefix
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.speech.cancellation import CancelToken, polling
from voxcpm_runtime.speech.one_ahead import one_ahead
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.speech.results import TooLongWarning

SpokenPatch = tuple[Patch, Audio]
Noise = Callable[[int], NoiseSource]
"""The source of noise of an attempt, counted from 0."""


class Utterance:
    """A request being spoken. What `cancel` ends, and an iteration that is closed early, ends between two steps."""

    def __init__(self, driver: Driver, request: Request, prefix: Prefix | None, cancel: CancelToken) -> None:
        """prefix: of the request's voice."""
        self.request = request
        self._ending = CancelToken(cancel)
        self._driver = driver.over(polling(driver.models, self._ending))
        self._prefix = prefix
        self.attempt = 0
        """The present one, from 1."""
        self.began = time.perf_counter()
        """When it did."""
        self.spoken: list[SpokenPatch] = []
        """Its patches; none while streaming."""

    def attempts(self, noise: Noise) -> Iterator[Patch]:
        """Attempts until one is good or there were enough; its patches stay in `spoken`."""
        prefilled = self._prefilled()
        options = self.request.options
        most = options.retry_badcase_max_times if options.retry_badcase else 1
        while self.attempt == 0 or (self.attempt < most and self.is_bad(len(self.spoken))):
            if self.attempt:
                self.began = time.perf_counter()
            self.spoken = []
            self.attempt += 1
            for spoken in self._spoken_patches(prefilled, noise(self.attempt - 1)):
                self.spoken.append(spoken)
                yield spoken[0]
        if options.retry_badcase and self.is_too_long(len(self.spoken)):
            tried = f"{self.attempt} attempts" if self.attempt > 1 else "1 attempt"
            self._warn_too_long(len(self.spoken), f"after {tried} it is kept as it is")
        self._warn_if_cut(self.spoken[-1][0])

    def stream(self, noise: Noise) -> Iterator[SpokenPatch]:
        """One attempt, each patch as soon as it is known: what has been heard cannot be taken back."""
        self.attempt = 1
        told = not self.request.options.retry_badcase
        patch = None
        for patch, audio in self._spoken_patches(self._prefilled(), noise(0)):
            if not told and self.is_too_long(patch.index + 1):
                self._warn_too_long(patch.index + 1, "it cannot be tried again once it is heard")
                told = True
            yield patch, audio
        if patch is not None:
            self._warn_if_cut(patch)

    def is_too_long(self, patches: int) -> bool:
        """For its text. Upstream counts the decoder's context as well for VoxCPM, and not for VoxCPM2."""
        traits = self._driver.architecture.traits
        if traits.context_counts_as_speech:
            patches += len(self.request.sequence.decoder_context(traits.decoder_context_patches))
        return patches >= self.request.target_tokens * self.request.options.retry_badcase_ratio_threshold

    def is_bad(self, patches: int) -> bool:
        """Too long for its text, or cut off by the end of the KV cache."""
        return self.is_too_long(patches) or self._is_cut(self.spoken[-1][0])

    @property
    def stopped(self) -> bool:
        """Whether the stop head ended the present attempt."""
        return bool(self.spoken) and self.spoken[-1][0].stops

    @property
    def latents(self) -> Latents:
        """Of the present attempt (patches, frames, latent_dim)."""
        a = self._driver.architecture
        empty = np.zeros((0, a.patch_size, a.feat_dim), np.float32)
        return np.stack([patch.latents for patch, _ in self.spoken]) if self.spoken else empty

    @property
    def audio(self) -> Audio:
        """Of the present attempt (samples,)."""
        return np.concatenate([np.zeros(0, np.float32), *(audio for _, audio in self.spoken)])

    def _prefilled(self) -> Prefilled:
        shared = 0 if self._prefix is None else self.request.shared
        return self._driver.prefill(self.request.sequence, self._prefix, shared)

    def _spoken_patches(self, prefilled: Prefilled, noise: NoiseSource) -> Iterator[SpokenPatch]:
        """Each patch with its audio, which is decoded while the next patch is predicted."""
        request = self.request
        decode = self._driver.patch_decoder(request.sequence)
        # Named, so that what is below runs before it is closed, which waits for its thread.
        patches = one_ahead(self._driver.generate_patches(prefilled, request.options, noise, request.limit))
        finished = False
        try:
            for patch in patches:
                yield patch, decode(patch.latents)
            finished = True
        finally:
            if not finished:
                self._ending.cancel()

    def _is_cut(self, last: Patch) -> bool:
        return self.request.limited_by_cache and not last.stops and last.index + 1 == self.request.limit

    def _warn_too_long(self, patches: int, then: str) -> None:
        tokens = self.request.target_tokens
        warnings.warn(
            f"the speech is suspiciously long for its text ({patches} patches for {tokens} tokens); {then}; "
            "another seed may do better",
            TooLongWarning,
            stacklevel=3,
        )

    def _warn_if_cut(self, last: Patch) -> None:
        if self._is_cut(last):
            warnings.warn(
                f"the speech was cut off after {self.request.limit} patches: the KV cache is full; "
                "shorten the text or the prompt, or convert with a greater --max-length",
                stacklevel=3,
            )
