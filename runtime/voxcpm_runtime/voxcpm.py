"""`VoxCPM`: text in, speech out, with upstream's argument names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from voxcpm_constants.errors import InputError, VoxCPMError
from voxcpm_runtime.audio.files import Audio, AudioSource
from voxcpm_runtime.backends.loading import Backend, arithmetic_key, load_step_models
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.model.batch_slots import completed_jobs, lone_slot, run_jobs
from voxcpm_runtime.model.driver import Driver, Prefix
from voxcpm_runtime.options import checked_options
from voxcpm_runtime.session.session import BUFFER_SECONDS, Session
from voxcpm_runtime.speech.call import Call, read_call, read_voice
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.narrator import Narrator, Piece, split_sentence
from voxcpm_runtime.speech.request import Request, build_request, checked_text, read_text, voice_lead
from voxcpm_runtime.speech.results import Speech
from voxcpm_runtime.speech.speaking import speak_call, stream_call
from voxcpm_runtime.speech.streaming import DEFAULT_CHUNK_PATCHES, check_chunking, chunked
from voxcpm_runtime.storage.freed_memory import return_freed_memory
from voxcpm_runtime.text.segments import Segment
from voxcpm_runtime.voices.prefix_cache import cached_prefixes
from voxcpm_runtime.voices.recordings import Recording, provenance
from voxcpm_runtime.voices.voice import Voice

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from voxcpm_runtime.options import OptionArguments
    from voxcpm_runtime.speech.call import CallArguments

_RECORDINGS = ("prompt_wav_path", "prompt_text", "reference_wav_path")


class VoxCPM:
    """A checkpoint's step models, ready to speak; make one with `from_bundle`.

    Any number of threads may call one: each call has its own caches, and nothing else is written.
    """

    def __init__(self, bundle: Bundle, driver: Driver, arithmetic: str = "") -> None:
        """arithmetic: `arithmetic_key` of the step models' backend."""
        self.bundle = bundle
        self._driver: Driver | None = driver
        self._key = f"{bundle.digest}|{arithmetic}"
        self._prefix = cached_prefixes(self._make_prefix, self._key)

    @classmethod
    def from_bundle(
        cls,
        path: str | Path | None = None,
        precision: str | None = None,
        backend: Backend = "auto",
        threads: int | None = None,
        verify: bool = False,
        compute_units: str = "all",
    ) -> Self:
        """Open a bundle's folder, one of the hub (`organisation/name`) or the default one, and load its step models.

        precision: "int8", "int4", "fp16" or "fp32"; by default the first of these that the bundle has.
        backend: "coreml", "portable", or "auto", Core ML on a Mac. threads: of one operation, portable only.
        verify: hash every file.
        compute_units: "all", "cpu", "cpu_and_gpu" or "cpu_and_ne", Core ML only.

        Raises BundleError and InputError.
        """
        bundle = open_bundle(path, precision, verify=verify)
        models = load_step_models(bundle, backend, threads=threads, compute_units=compute_units)
        driver = Driver(bundle.architecture, bundle.manifest.sizes, bundle.constants, models)
        return_freed_memory()
        return cls(bundle, driver, arithmetic_key(backend, compute_units))

    def close(self) -> None:
        """Let go of the step models and their memory. Calls that are under way end as they would have."""
        self._driver = None
        self._prefix.cache_clear()
        return_freed_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def driver(self) -> Driver:
        """Constants and step models as functions. Raises InputError after `close`."""
        if self._driver is None:
            raise InputError("this voice was closed; open the bundle again")
        return self._driver

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
        **given: Unpack[CallArguments],
    ) -> Audio:
        """Speech (samples,) in [-1, 1] at `sample_rate` Hz. Arguments and errors: `speak`."""
        return self.speak(text, prompt_wav_path, prompt_text, reference_wav_path, **given).audio

    def speak(
        self,
        text: str,
        prompt_wav_path: AudioSource | None = None,
        prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None,
        **given: Unpack[CallArguments],
    ) -> Speech:
        """Speech with its seed, latents and timing. A long text is spoken in segments, one after another.

        prompt_wav_path, prompt_text: audio to continue, and what is said in it. reference_wav_path: a voice to speak
        with (VoxCPM2). given: fields of `CallArguments`, and options, fields of `GenerationOptions`.

        Raises InputError, one line, for anything that cannot be spoken, before any work is done, and Cancelled. Warns
        (TooLongWarning) of speech that is suspiciously long for its text in every attempt.
        """
        call = self._call(text, prompt_wav_path, prompt_text, reference_wav_path, given)
        return self._spoken(call, lone_slot(self.driver), call.parallel_segments)

    def batch(self, utterances: Iterable[str | Mapping[str, Any]]) -> list[Speech]:
        """Speak several utterances, each with its own text, voice, seed and options, and each as it would alone.

        utterances: texts, or arguments of `speak` by name, `text` among them. They run at once, as many as the bundle
        was converted for (`convert --batch`), or one after another.

        Raises as `speak`: InputError for any of them before there is work on one, other errors when all have ended.
        """
        calls: list[Call] = []
        try:
            calls += map(self._named_call, utterances)
        except InputError as error:
            raise InputError(f"utterance {len(calls) + 1}: {error}") from None
        return run_jobs(self.driver, [partial(self._spoken, call) for call in calls], len(calls))

    def speak_each(
        self, utterances: Sequence[str | Mapping[str, Any]]
    ) -> Iterator[tuple[int, Speech | VoxCPMError]]:
        """As `batch`, each as soon as it is spoken, with its index; an error takes the place of its speech.

        What an utterance's arguments ask for, such as reading its recordings, is done when its turn comes.
        """

        def job(given: str | Mapping[str, Any], driver: Driver) -> Speech:
            return self._spoken(self._named_call(given), driver)

        jobs = [partial(job, given) for given in utterances]
        for index, result in completed_jobs(self.driver, jobs, len(jobs)):
            error = result.exception()
            if error is not None and not isinstance(error, VoxCPMError):
                raise error
            yield index, result.result() if error is None else error

    def generate_streaming(
        self,
        text: str,
        prompt_wav_path: AudioSource | None = None,
        prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None,
        *,
        chunk_patches: int = DEFAULT_CHUNK_PATCHES,
        first_chunk_patches: int | None = None,
        **given: Unpack[CallArguments],
    ) -> Iterator[Audio]:
        """The speech of `speak`, in chunks (samples,) of `chunk_patches` patches, as soon as they are known.

        first_chunk_patches: of the first chunk; fewer are heard sooner.

        What has been heard cannot be taken back: in place of a retry, TooLongWarning says, as soon as it is known,
        that the speech is suspiciously long for its text. With the seed of a speech that was not tried again, the
        samples are exactly its. Errors are raised by the call itself, not by the first chunk. Closing the iterator
        ends the generation between two Euler steps.
        """
        check_chunking(chunk_patches, first_chunk_patches)
        call = self._call(text, prompt_wav_path, prompt_text, reference_wav_path, given)
        narrator = self._narrator(call, lone_slot(self.driver))
        pieces = stream_call(call, narrator, call.segments, self.bundle.architecture.patch_seconds)
        return chunked(pieces, chunk_patches, first_chunk_patches)

    def session(
        self,
        prompt_wav_path: AudioSource | None = None,
        prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None,
        *,
        buffer_seconds: float = BUFFER_SECONDS,
        **given: Unpack[CallArguments],
    ) -> Session:
        """Speech while its text is being written, a chunk of 16-bit samples a patch: see `Session`.

        Arguments are those of `speak`. buffer_seconds: of audio that waits to be read, before speaking stands still.
        """
        sources = (prompt_wav_path, prompt_text, reference_wav_path)
        call = read_call(self.bundle, self.driver, None, *sources, given)

        def narrate(segments: Iterable[Segment], /, *, cancel: CancelToken) -> Iterator[Piece]:
            either = replace(call, cancel=CancelToken(cancel, call.cancel))
            narrator = self._narrator(either, lone_slot(self.driver))
            return stream_call(call, narrator, segments, self.bundle.architecture.patch_seconds)

        def split(sentence: str) -> list[Segment]:
            return split_sentence(self.bundle, sentence, call.voice, call.options)

        voice = call.voice.digest if call.voice else ""
        said = f"{self._key}|{voice}|{call.control}|{call.options}|{call.randomness.seed}"
        return Session(
            narrate, self.sample_rate, split=split, seed=said.encode(), buffer_seconds=buffer_seconds
        )

    def create_voice(
        self,
        audio: AudioSource | None = None,
        transcript: str | None = None,
        *,
        name: str,
        reference: AudioSource | None = None,
        trim_silence_vad: bool = False,
    ) -> Voice:
        """A voice to keep (`Voice.save`), and to give as `voice` in place of recordings.

        audio: with a transcript a prompt to continue; without one a reference (VoxCPM2). reference: beside a prompt.

        Raises InputError.
        """
        if transcript is None and audio is not None:
            if reference is not None:
                raise InputError("audio without a transcript is a reference: got two of them")
            audio, reference = None, audio
        recording = read_voice(self.bundle, None, audio, transcript, reference, trimmed=trim_silence_vad)
        if not isinstance(recording, Recording):
            raise InputError("a voice needs a recording: audio with its transcript, or a reference")
        said = {"checkpoint": self.bundle.manifest.source.checkpoint}
        said |= provenance(audio, "prompt") | provenance(reference, "reference")
        return recording.encoded(self.driver, name, said)

    def request(
        self,
        text: str,
        prompt_wav_path: AudioSource | None = None,
        prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None,
        **options: Unpack[OptionArguments],
    ) -> Request:
        """One utterance, checked, its audio encoded. Raises InputError."""
        checked = checked_options(**options)
        sources = (prompt_wav_path, prompt_text, reference_wav_path)
        voice = read_voice(self.bundle, None, *sources, trimmed=checked.trim_silence_vad)
        words = read_text(self.bundle, text, voice, checked)
        encoded = voice.encoded(self.driver) if isinstance(voice, Recording) else voice
        return build_request(self.bundle, words, encoded, checked)

    def _call(
        self,
        text: str,
        prompt: AudioSource | None,
        prompt_text: str | None,
        reference: AudioSource | None,
        given: Mapping[str, Any],
    ) -> Call:
        text = checked_text(text, "text")
        return read_call(self.bundle, self.driver, text, prompt, prompt_text, reference, given)

    def _named_call(self, given: str | Mapping[str, Any]) -> Call:
        """Of arguments by name."""
        named: dict[str, Any] = {"text": given} if isinstance(given, str) else dict(given)
        text, prompt, words, reference = (named.pop(name, None) for name in ("text", *_RECORDINGS))
        return self._call(text, prompt, words, reference, named)

    def _spoken(self, call: Call, driver: Driver, at_once: int = 1) -> Speech:
        return speak_call(call, self._narrator(call, driver), self.driver, at_once)

    def _narrator(self, call: Call, driver: Driver) -> Narrator:
        return Narrator(
            self.bundle,
            driver,
            self._prefix,
            call.options,
            call.randomness,
            voice=call.voice,
            control=call.control,
            cancel=call.cancel,
        )

    def _make_prefix(self, voice: Voice) -> Prefix:
        a = self.bundle.architecture
        nothing = np.zeros((0, a.patch_size, a.feat_dim), np.float32)
        prompt = nothing if voice.prompt is None else voice.prompt
        return lone_slot(self.driver).prefix(voice_lead(self.bundle, voice), prompt)
