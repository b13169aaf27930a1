"""Speaking one job on a thread: segment after segment into its folder, then all of them into one file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from voxcpm_runtime import CancelToken, InputError, Progress, SavedSegments, SpokenSegment, Voice
from voxcpm_server.errors import ApiError, speech_too_long
from voxcpm_server.jobs.options import JobSettings
from voxcpm_server.jobs.store import VOICE_FILE, Job, JobStore, whole_file
from voxcpm_server.settings import MEGABYTE
from voxcpm_server.speech.served_bundles import Served
from voxcpm_server.speech.speech_requests import RECORDINGS, SpeechRequest

# Of speech, encoded at a time.
_PIECE_SECONDS = 10


@dataclass
class RunningJob:
    """The job that is being spoken: its progress, and its cancellation."""

    job: Job
    starts: int
    """Starts since its last finished segment, including this one."""
    segments_done: int = 0
    audio_seconds: float = 0.0
    remaining_seconds: float | None = None
    cancel: CancelToken = field(default_factory=CancelToken)


def speak_job(
    store: JobStore,
    running: RunningJob,
    served: Served,
    settings: JobSettings,
    after_patch: Callable[[], None],
) -> int:
    """Speak a job, and return the size of its speech's file in bytes.

    after_patch: called after every patch; may raise Cancelled. Raises Cancelled, what `VoxCPM.speak` raises, OSError
    and sqlite3.Error if the disk is full, and ApiError if the speech is too long, or its files are too large.
    """
    job, folder, tts = running.job, store.path(running.job.id), served.tts
    asked = SpeechRequest.model_validate({**job.asked, "seed": job.seed})
    asked.attach({name: (folder / name).read_bytes() for name in RECORDINGS if (folder / name).is_file()})
    given = asked.arguments(settings, served, settings.max_job_characters, _saved_voice(folder / VOICE_FILE))

    def heard(progress: Progress) -> None:
        running.audio_seconds = resumed_seconds + progress.audio_seconds
        running.remaining_seconds = progress.remaining_seconds
        if running.audio_seconds > settings.max_job_audio_seconds:
            raise speech_too_long(settings.max_job_audio_seconds, "job here")
        after_patch()

    def finished() -> None:
        running.segments_done += 1
        running.starts = 0
        done, seconds = running.segments_done, running.audio_seconds
        store.change(job.id, segments_done=done, audio_seconds=seconds, starts=0)
        check_size(store, settings)

    saved = _Segments(folder / job.audio_name, tts.bundle.digest, job.seed, finished)
    running.segments_done = saved.count
    running.audio_seconds = resumed_seconds = job.audio_seconds if saved.count else 0.0
    speech = tts.speak_plan(tts.plan(**given, progress=heard, cancel=running.cancel, saved_segments=saved))
    running.audio_seconds = speech.audio_seconds
    # Before the file: once that exists, the job is finished, even if the server is killed.
    count = len(speech.segments)
    store.change(job.id, segments_done=count, segments=count, audio_seconds=speech.audio_seconds)
    encoder = asked.encoder(tts)
    with whole_file(folder / job.audio_name) as file:
        file.write(encoder.header())
        for at in range(0, len(speech.audio), _PIECE_SECONDS * tts.sample_rate):
            running.cancel.check()
            file.write(encoder.encode(speech.audio[at : at + _PIECE_SECONDS * tts.sample_rate]))
        file.write(encoder.finish())
        size = file.tell()
        file.seek(0)
        file.write(encoder.header(encoder.samples))
    return size


def check_size(store: JobStore, settings: JobSettings) -> None:
    """Raises ApiError (507) if the files of all jobs have reached their maximum size."""
    maximum = settings.max_jobs_megabytes
    if store.size() >= maximum * MEGABYTE:
        raise ApiError(507, f"the jobs take {maximum:g} MB, the most that they may; delete one")


def _saved_voice(path: Path) -> Voice | None:
    """The voice of a job. Raises OSError if it cannot be read: the file is the server's, not the client's."""
    try:
        return Voice.load(path) if path.is_file() else None
    except InputError as error:
        raise OSError(str(error)) from None


class _Segments(SavedSegments):
    """The finished segments of a job. finished: called when another one is saved."""

    def __init__(self, output: Path, digest: str, seed: int, finished: Callable[[], None]) -> None:
        super().__init__(output, digest, seed, drawn=False)
        self._finished = finished

    def put(self, index: int, segment: SpokenSegment) -> None:
        """Save a segment. Raises OSError if it cannot be written."""
        try:
            super().put(index, segment)
        except InputError as error:
            raise OSError(str(error)) from None
        self._finished()
