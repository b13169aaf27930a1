"""Options of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from voxcpm_server.settings import Settings, options

_jobs = options("Jobs")


@dataclass(frozen=True)
class JobSettings(Settings):
    """Limits and storage of jobs."""

    jobs_folder: Annotated[Path | None, _jobs("Folder of jobs. Default: the user's.")] = None
    max_jobs: Annotated[int, _jobs("Maximum stored jobs, ended or not; 0 disables jobs.", 0, 100_000)] = 100
    max_job_characters: Annotated[int, _jobs("Maximum characters of text per job.", 1, 10_000_000)] = 100_000
    max_job_audio_seconds: Annotated[float, _jobs("Maximum seconds of speech per job.", 1, 40_000)] = 21_600
    max_jobs_megabytes: Annotated[float, _jobs("Maximum megabytes of all jobs.", 0.001, 100_000_000)] = 10_000
    jobs_keep_days: Annotated[float, _jobs("Days to keep an ended job.", 0, 36_500)] = 7
