"""The options of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from voxcpm_server.settings import Settings, options

if TYPE_CHECKING:
    from typing import Self

_jobs = options("Jobs")


@dataclass(frozen=True)
class JobSettings(Settings):
    """How many jobs there may be, how large, and for how long."""

    jobs_folder: Annotated[Path | None, _jobs("Folder of jobs. Default: the user's own.")] = None
    max_jobs: Annotated[int, _jobs("Maximum stored jobs, ended ones too; 0 disables jobs.", 0, 100_000)] = 100
    max_job_characters: Annotated[int, _jobs("Maximum characters of a job's text.", 1, 10_000_000)] = 100_000
    max_job_audio_seconds: Annotated[float, _jobs("Maximum seconds of speech per job.", 1, 40_000)] = 21_600
    max_jobs_megabytes: Annotated[float, _jobs("Maximum megabytes of files.", 0.001, 100_000_000)] = 10_000
    jobs_keep_days: Annotated[float, _jobs("Days after which an ended job is deleted.", 0, 36_500)] = 7

    def only_alone(self) -> Iterator[str]:
        """The given options that only a single server can have."""
        yield from super().only_alone()
        if self.jobs_folder is not None:
            yield "--jobs-folder"

    def for_replica(self) -> Self:
        """Without jobs: a job belongs to one server."""
        return replace(super().for_replica(), max_jobs=0)
