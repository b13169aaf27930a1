"""`VoxCPM`: text in, speech out, with upstream's argument names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxcpm_constants.errors import BundleError, InputError, VoxCPMError, system_errors_as
from voxcpm_runtime.argument_types import checked_text, switch, text_argument, valid_unicode, wrong_type
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.audio.reading import AudioSource
from voxcpm_runtime.backends.core_ml.compute_units import AUTO, ComputeUnits
from voxcpm_runtime.backends.loading import Backend, arithmetic_key, load_step_models, place_step_models
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.bundle.pretrained import check_device, pretrained_bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.options import named_options
from voxcpm_runtime.speech.gathering import SpeechBuilder
from voxcpm_runtime.speech.plan import SPEAKING, Plan
from voxcpm_runtime.speech.planning import plan, read
from voxcpm_runtime.speech.request import AnyRequest, CancelToken, Keywords, Request, request_of
from voxcpm_runtime.speech.results import Piece, PlannedSegment, Speech
from voxcpm_runtime.speech.session import BUFFER_SECONDS, Session
from voxcpm_runtime.speech.splitting import split_first_sentence, split_sentence
from voxcpm_runtime.speech.stream import DEFAULT_CHUNK_PATCHES, checked_chunking, chunked, stream
from voxcpm_runtime.storage.process_memory import return_freed_memory
from voxcpm_runtime.text.cleaning import Cleaner
from voxcpm_runtime.text.lexicon import LexiconSource, lexicon_entries
from voxcpm_runtime.text.normalization import spelled
from voxcpm_runtime.text.segments import Segment
from voxcpm_runtime.voices.prefix_cache import cached_prefixes, computed_prefix
from voxcpm_runtime.voices.recordings import Recordings, encoded
from voxcpm_runtime.voices.store import built_in_voices, default_voice
from voxcpm_runtime.voices.voice import Voice, checked_provenance, latent_space

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class VoxCPM:
    """Text-to-speech with the step models of a bundle; create one with `from_bundle`. Thread-safe."""

    def __init__(
        self, bundle: Bundle | None = None, driver: Driver | None = None, arithmetic: str = "",
        *of_upstream: object, **named: object,
    ) -> None:  # fmt: skip
        """Used by `from_bundle`. driver: the loop over the step models. arithmetic: `arithmetic_key` of their units.
        Raises InputError for anything else: upstream's constructor takes a folder, as `from_pretrained` does here.
        """
        if of_upstream or named or not isinstance(bundle, Bundle) or not isinstance(driver, Driver):
            raise InputError(
                "open a bundle with VoxCPM.from_bundle(folder), or a checkpoint with VoxCPM.from_pretrained(folder)"
            )
        self.bundle = bundle
        self._driver: Driver | None = driver
        self._key = f"{bundle.digest}|{arithmetic}"
        self._prefix = cached_prefixes(lambda voice: computed_prefix(bundle, self.driver, voice), self._key)

    @classmethod
    @system_errors_as(BundleError)
    def from_bundle(
        cls, path: str | Path | Bundle | None = None, precision: str | None = None, backend: Backend = "auto",
        threads: int | None = None, verify: bool = False, compute_units: ComputeUnits = AUTO,
        on_first_use: Callable[[str], object] = lambda _: None,
    ) -> Self:  # fmt: skip
        """Open a bundle and load its step models.

        path: a bundle's folder, a hub id (`organisation/name`), None for the built-in voice, or an open bundle, which
        keeps its precision. precision: "int8", "int4", "fp16" or "fp32"; by default the first of these in the bundle.
        backend: "coreml", "coreai", "portable", or "auto": Core AI for a macOS 27 bundle, else Core ML on a Mac, else
        portable. threads: threads per operation (portable only). verify: check the checksum of every file.
        compute_units (Core ML only): "auto", "all", "cpu", "cpu_and_gpu" or "cpu_and_ne", or a mapping from names of
        step models to these, where "*" means all others. on_first_use (Core ML only): called with a progress line
        before Core ML compiles or prepares a step model for this machine, which takes minutes.

        Raises BundleError for a bundle that cannot be opened or loaded, InputError for a wrong argument.
        """
        switch(verify, "verify")
        bundle = path if isinstance(path, Bundle) else open_bundle(path, precision, verify=verify)
        where: dict[str, Any] = {
            "threads": threads, "compute_units": compute_units, "first_use": on_first_use,
        }  # fmt: skip
        placed = place_step_models(bundle, backend, **where)
        driver = Driver(
            bundle.architecture, bundle.manifest.sizes, bundle.constants,
            {name: step_model.model for name, step_model in placed.items()},
            lambda: load_step_models(replace(bundle, manifest=bundle.manifest.for_several()), backend, **where),
        )  # fmt: skip
        return_freed_memory()
        # Read once, not in the first call: the tables of English, which take 80 ms, and the default voice.
        spelled("a", bundle.tokenizer)
        default_voice(bundle)
        return cls(bundle, driver, arithmetic_key({name: p.unit for name, p in placed.items()}))

    @classmethod
    @system_errors_as(BundleError)
    def from_pretrained(
        cls, hf_model_id: str = "openbmb/VoxCPM2", load_denoiser: bool = True,  # noqa: ARG003 - upstream's
        zipenhancer_model_id: str | None = None, cache_dir: str | None = None,  # noqa: ARG003 - likewise
        local_files_only: bool = False, optimize: bool = True,  # noqa: ARG003 - nothing is compiled by torch here
        device: str | None = None, lora_config: object = None, lora_weights_path: str | None = None,
        *, precision: str | None = None, **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Open a checkpoint as upstream does. The first call converts it into the user's cache, which takes minutes.

        hf_model_id: a hub id (organisation/name), or the folder of a checkpoint or a bundle. cache_dir: folder for
        downloads. local_files_only: do not use the network. lora_weights_path: a LoRA to merge. precision: of the
        bundle, by default int8. kwargs: see `from_bundle`. device: "auto", "cpu" or None, which mean the same here.
        load_denoiser, zipenhancer_model_id and optimize are ignored.

        Raises InputError for a wrong argument, MissingExtraError if the extra `convert` is not installed, and the
        errors of the conversion and of `from_bundle`.
        """
        if lora_config is not None:
            raise InputError(
                "lora_config is read from lora_config.json next to the LoRA's weights; leave it out"
            )
        check_device(device)
        folder = pretrained_bundle(
            str(hf_model_id), precision, None if lora_weights_path is None else str(lora_weights_path), cache_dir,
            local_files_only=local_files_only,
        )  # fmt: skip
        return cls.from_bundle(folder, precision, **kwargs)

    @property
    def tts_model(self) -> Self:
        """This object, for upstream's `tts_model.sample_rate`."""
        return self

    @property
    def lora_enabled(self) -> bool:
        """Whether a LoRA was merged into the bundle's weights."""
        return self.bundle.manifest.source.lora is not None

    def close(self) -> None:
        """Release the step models and their memory. Running calls finish normally."""
        self._driver = None
        self._prefix.cache_clear()
        return_freed_memory()

    def __repr__(self) -> str:
        return f"VoxCPM({self.bundle!r}, backend={self._key.partition('|')[2].partition(' ')[0]!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def driver(self) -> Driver:
        """The loop over the step models. Raises InputError after `close`."""
        if self._driver is None:
            raise InputError("this VoxCPM is closed; open the bundle again")
        return self._driver

    @property
    def sample_rate(self) -> int:
        """The sample rate of the generated audio in Hz."""
        return self.bundle.architecture.output_sample_rate

    @property
    def built_in_voices(self) -> dict[str, Voice]:
        """The built-in voices by name; empty unless the bundle has their AudioVAE."""
        return dict(built_in_voices(latent_space(self.bundle.architecture)))

    def generate(
        self, text: str, prompt_wav_path: AudioSource | None = None, prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None, *options: Any, **kwargs: Unpack[Keywords],
    ) -> Audio:  # fmt: skip
        """Speech (samples,) in [-1, 1] at `sample_rate` Hz. Arguments and errors: see `speak`."""
        return self.speak(text, prompt_wav_path, prompt_text, reference_wav_path, *options, **kwargs).audio

    def speak(
        self, text: str, prompt_wav_path: AudioSource | None = None, prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None, *options: Any, **kwargs: Unpack[Keywords],
    ) -> Speech:  # fmt: skip
        """Speech with its seed, latents and timing. A long text is spoken in segments, one after another.

        prompt_wav_path, prompt_text: a recording to continue, and its transcript. reference_wav_path: a recording of
        the voice (VoxCPM2). options: positional options, in upstream's order (`UPSTREAM_ORDER`). kwargs: `voice`, and
        fields of `Request` and `GenerationOptions`.

        Raises a one-line InputError before any work is done, and Cancelled. Warns (SuspiciousWarning) if a segment is
        too long or too short for its text in every attempt.
        """
        planned = self.plan(text, prompt_wav_path, prompt_text, reference_wav_path, *options, **kwargs)
        return self.speak_plan(planned)

    def plan(
        self, text: str, prompt_wav_path: AudioSource | None = None, prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None, *options: Any, **kwargs: Unpack[Keywords],
    ) -> Plan:  # fmt: skip
        """What `speak` with these arguments would speak: arguments checked, text tokenised and split into segments.

        A text of more than 5000 characters is read lazily, while it is spoken; the plan has its first segment.
        """
        recordings = Recordings(prompt_wav_path, prompt_text, reference_wav_path)
        named = named_options(options, kwargs) if options else dict(kwargs)
        with system_errors_as(InputError):
            return plan(self.bundle, request_of(checked_text(text, "text"), recordings, named))

    @system_errors_as(InputError)
    def plan_request(self, request: Request) -> Plan:
        """`plan` for a whole request."""
        return plan(self.bundle, request)

    def speak_plan(self, plan: Plan, driver: Driver | None = None) -> Speech:
        """The speech of a plan for this bundle. driver: another than this one's. Errors and warnings: see `speak`."""
        speaking = SPEAKING.set(plan)
        try:
            builder = SpeechBuilder(plan)
            for _ in self._stream(plan, plan.each_segment(), builder, driver=driver):
                pass
            return builder.speech()
        finally:
            SPEAKING.reset(speaking)
            if plan.request.saved_segments is not None:
                plan.request.saved_segments.release()

    def batch(self, utterances: Iterable[AnyRequest], together: int | None = None) -> list[Speech]:
        """Speak several utterances, each with its own text, voice, seed and options.

        utterances: texts, requests, or arguments of `speak` by name, including `text`. together: how many at once, with
        one reading of the weights and the same samples; by default, as many as the bundle was converted for (`convert
        --batch`).

        All are checked before the first one is spoken. Errors: see `speak`; of several, the first one's.
        """
        count = self.bundle.together(together)
        plans: list[Plan] = []
        listed = _as_list(utterances)
        try:
            plans += map(self._planned, listed)
        except InputError as error:
            raise InputError(f"utterance {len(plans) + 1}: {error}") from None
        speeches = dict[int, Speech]()
        for index, speech in self.speak_together(plans, count):
            if isinstance(speech, VoxCPMError):
                raise speech
            speeches[index] = speech
        return [speeches[index] for index in range(len(plans))]

    def speak_together(
        self, plans: Sequence[Plan], together: int
    ) -> Iterator[tuple[int, Speech | VoxCPMError]]:
        """Yield the index of each plan with its speech or error, `together` at once (`Bundle.together`), in any order.

        Each has the samples that `speak_plan` gives it, and may be cancelled alone.
        """
        if together == 1:
            return enumerate(map(self._speech_or_error, plans))
        from voxcpm_runtime.batch.lock_step import spoken_together

        return spoken_together(self.driver, plans, together, self._speech_or_error)

    def generate_streaming(
        self, text: str, prompt_wav_path: AudioSource | None = None, prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None, *options: Any, chunk_patches: int = DEFAULT_CHUNK_PATCHES,
        first_chunk_patches: int | None = None, **kwargs: Unpack[Keywords],
    ) -> Iterator[Audio]:  # fmt: skip
        """Yield the speech of `speak` in chunks (samples,) of `chunk_patches` patches as soon as they are ready.

        first_chunk_patches: patches of the first chunk; fewer start audio sooner.

        Streams are not retried: SuspiciousWarning reports a segment that is too long or too short for its text. The
        samples are exactly those of `speak` with the same seed, if that needs no retry. Errors are raised by the call
        itself, not by the first chunk. Closing the iterator cancels before the next step.
        """
        planned = self.plan(text, prompt_wav_path, prompt_text, reference_wav_path, *options, **kwargs)
        return self.stream_plan(planned, chunk_patches=chunk_patches, first_chunk_patches=first_chunk_patches)

    def stream_plan(
        self,
        plan: Plan,
        *,
        chunk_patches: int = DEFAULT_CHUNK_PATCHES,
        first_chunk_patches: int | None = None,
    ) -> Iterator[Audio]:
        """The speech of a plan in chunks (samples,). Arguments, errors and warnings: see `generate_streaming`."""
        first, others = checked_chunking(chunk_patches, first_chunk_patches)
        return chunked(self._stream(plan, plan.each_segment(), first=first), first, others)

    def session(
        self, prompt_wav_path: AudioSource | None = None, prompt_text: str | None = None,
        reference_wav_path: AudioSource | None = None, *, buffer_seconds: float = BUFFER_SECONDS,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext, **kwargs: Unpack[Keywords],
    ) -> Session:  # fmt: skip
        """A `Session`, which speaks text while it is being written, in one chunk of 16-bit samples per patch.

        Arguments: see `speak`. buffer_seconds: maximum seconds of unread audio; when the buffer is full, speaking
        pauses. turn: returns the context manager in which the session speaks (see `Session`).
        """
        recordings = Recordings(prompt_wav_path, prompt_text, reference_wav_path)
        with system_errors_as(InputError):
            request = request_of(None, recordings, dict(kwargs))
        return self.session_for(request, buffer_seconds=buffer_seconds, turn=turn)

    def session_for(
        self, request: Request, *, buffer_seconds: float = BUFFER_SECONDS,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Session:  # fmt: skip
        """`session` for a request without a text. Raises InputError if it has one."""
        if request.text is not None:
            raise InputError(
                "a session's text arrives later: expected a request without one", argument="text"
            )
        planned = self.plan_request(request)
        voice = encoded(planned.voice, self.driver)

        def narrate(segments: Iterable[Segment | None], /, *, cancel: CancelToken) -> Iterator[Piece]:
            either = replace(planned, voice=voice, cancel=CancelToken(cancel, planned.cancel))
            return self._stream(either, read(either, segments))

        digest, clean = voice.digest if voice else "", Cleaner(planned.options.clean)
        takes_control = self.bundle.architecture.traits.takes_reference
        said = f"{self._key}|{digest}|{planned.description}|{planned.options}|{planned.seed}{planned.lexicon or ''}"
        return Session(
            narrate, self.sample_rate, split=partial(split_sentence, planned, clean), seed=said.encode(),
            buffer_seconds=buffer_seconds, turn=turn,
            split_first=partial(split_first_sentence, planned, clean) if takes_control else None,
        )  # fmt: skip

    @system_errors_as(InputError)
    def create_voice(
        self, audio: AudioSource | None = None, transcript: str | None = None, *, name: str,
        reference: AudioSource | None = None, trim_silence_vad: bool = False,
        provenance: Mapping[str, str] | None = None, lexicon: LexiconSource | None = None,
    ) -> Voice:  # fmt: skip
        """Create a voice, to save (`Voice.save`) and to pass as `voice` instead of recordings.

        audio: with a transcript, a prompt to continue; without one, a reference (VoxCPM2). reference: in addition to a
        prompt. trim_silence_vad: trim silence at both ends of the recordings. provenance: stored with the voice, such
        as the speaker's consent, in addition to the date and the names and digests of the recordings.

        Raises InputError for recordings that are missing, cannot be read or are too short, or need VoxCPM2.
        """
        valid_unicode(text_argument(name, "name"), "name", "name")
        switch(trim_silence_vad, "trim_silence_vad")
        recordings = Recordings.for_new_voice(audio, transcript, reference)
        entries = lexicon_entries(lexicon)
        unencoded = recordings.decode(self.bundle.architecture, trimmed=trim_silence_vad)
        origin = {**recordings.provenance(self.bundle.manifest.source), **checked_provenance(provenance)}
        return unencoded.encode(self.driver, name, origin, entries)

    def _speech_or_error(self, plan: Plan, driver: Driver | None = None) -> Speech | VoxCPMError:
        try:
            with system_errors_as(InputError):
                return self.speak_plan(plan, driver)
        except VoxCPMError as error:
            return error

    def _planned(self, utterance: AnyRequest) -> Plan:
        if isinstance(utterance, Request):
            checked_text(utterance.text, "text")
            return plan(self.bundle, utterance)
        if isinstance(utterance, str):
            return self.plan(utterance)
        if not isinstance(utterance, Mapping) or "text" not in utterance:
            raise wrong_type(
                utterance, "it", "a text, or a mapping with the key 'text' and other arguments by name"
            )
        return self.plan(**utterance)

    def _stream(
        self,
        plan: Plan,
        segments: Iterable[PlannedSegment | None],
        whole: SpeechBuilder | None = None,
        first: int = 1,
        driver: Driver | None = None,
    ) -> Iterator[Piece]:
        if plan.bundle is not self.bundle and plan.bundle.digest != self.bundle.digest:
            raise InputError("this plan was made for another bundle; plan the text again with this one")
        voice = None if plan.voice is None else encoded(plan.voice, self.driver)
        return stream(plan, segments, driver or self.driver, voice, self._prefix, whole, first)


def _as_list(utterances: object) -> list[AnyRequest]:
    """Utterances as a list. Raises InputError for a single one: a str would be iterated by characters."""
    if isinstance(utterances, str | bytes | Mapping) or not isinstance(utterances, Iterable):
        raise wrong_type(utterances, "utterances", "a list of texts, or of arguments by name")
    return list(utterances)
