"""The options of jobs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxcpm_server.settings import Settings

if TYPE_CHECKING:
    from typing import Self

_jobs = functools.partial(typer.Option, rich_help_panel="Jobs")


@dataclass(frozen=True)
class JobSettings(Settings):
    """How many jobs there may be, how large, and for how long."""

    jobs_folder: Annotated[Path | None, _jobs(help="Folder of the jobs. Default: the user's own.")] = None
    max_jobs: Annotated[
        int,
        _jobs(
            min=0, max=100_000, help="Jobs that may be stored, those that ended among them; 0 for no jobs."
        ),
    ] = 100
    max_job_characters: Annotated[int, _jobs(min=1, max=10_000_000, help="Longest text of a job.")] = 100_000
    max_job_audio_seconds: Annotated[float, _jobs(min=1, max=40_000, help="Longest speech of a job.")] = (
        21_600
    )
    max_jobs_megabytes: Annotated[
        float, _jobs(min=0.001, max=100_000_000, help="Size of all files of all jobs.")
    ] = 10_000
    jobs_keep_days: Annotated[
        float, _jobs(min=0, max=36_500, help="Days after which a job that ended is deleted.")
    ] = 7

    def only_alone(self) -> Iterator[str]:
        """The given options that only a single server can have."""
        yield from super().only_alone()
        if self.jobs_folder is not None:
            yield "--jobs-folder"

    def for_replica(self) -> Self:
        """Without jobs: a job belongs to one server."""
        return replace(super().for_replica(), max_jobs=0)
