"""`validate --golden`: fixed texts compared with records, and between processes, chunk sizes and whole speech."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision
from voxcpm_runtime.audio.pcm import Audio, pcm16
from voxcpm_runtime.backends.choice import Backend
from voxcpm_runtime.backends.machine import cores
from voxcpm_runtime.bundle.opening import choose_precision, locate_bundle
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_runtime.options import SEGMENT_TOKENS
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.golden.key import golden_key
from voxcpm_validation.golden.records import RECORDS, GoldenRecord, SpeechRecord, read_records
from voxcpm_validation.listening.material import prompt_clip, prompt_voices

LENGTHS = {"min_len": 8, "max_len": 12}
"""Smallest and largest number of patches: low, for speed, and different, so that the stop head has an effect."""
CHUNKING = {"chunk_patches": 5, "first_chunk_patches": 1}
"""Patches in each recorded chunk."""
OTHER_CHUNKS = (1, 2, LENGTHS["max_len"])
"""Patches in a chunk that are tried besides the recorded ones; the last number makes a single chunk."""
THREADS = 2
"""Threads of one operation on the portable backend. The AudioVAE encoder's rounding depends on their number."""


class Case(NamedTuple):
    """One utterance. voice: name of a voice of the listening test whose prompt is continued; None for zero-shot."""

    name: str
    text: str
    seed: int
    voice: str | None = None


CASES = (
    Case("short", "hello.", 1),
    Case(
        "long",
        "the old farmer fed his chickens before sunrise, and then he walked slowly down to the river.",
        2,
    ),
    Case("numbers", "on may 3 she paid 42 dollars for 7 books.", 3, "heart"),
)


@dataclass(frozen=True)
class Examination:
    """All cases in one precision, each spoken whole, in several chunk sizes and in another process."""

    record: GoldenRecord
    """The record that this machine would write today."""
    failures: Mapping[str, tuple[str, ...]]
    """Differences between whole speech, other chunk sizes and another process, by case."""


def check_golden(
    bundle: str | None, precisions: Sequence[str], backend: Backend, *, record: bool, records: Path | None
) -> None:
    """Examine a bundle in the given precisions, or in all that it has, and print the results.

    record: write new records instead of comparing with the existing ones. records: folder of records.

    Raises typer.Exit(1) if anything differs, InputError and BundleError.
    """
    folder = locate_bundle(bundle, precisions[0] if precisions else None)
    manifest = Manifest.read(folder)
    chosen = [choose_precision(folder, manifest, p) for p in precisions] or list(manifest.precisions)
    if not record and records is not None and not records.is_dir():
        raise InputError(f"--records {records}: no such folder; make it with --record")
    known = () if record else read_records(records or RECORDS)
    console, out = Console(stderr=True), Console()
    with status_line("") as note:
        examinations = [examine(folder, precision, backend, report=note) for precision in chosen]
    table = Table("case", "samples", "again", "record")
    lines, failures = [], []
    for found in examinations:
        precision = found.record.key.precision
        same = next((one for one in known if one.key == found.record.key), None)
        for name, speech in found.record.cases.items():
            differences = _from_record(speech, same, name)
            all_failures = (*found.failures[name], *differences)
            failures += [f"{precision} {name}: {line}" for line in all_failures]
            table.add_row(
                f"{precision} {name}",
                str(speech.samples),
                "differs" if found.failures[name] else "same",
                "differs" if differences else "same" if same else "none",
            )
        if record and any(found.failures.values()):
            lines.append(f"{precision}: not recorded, as it differs from itself")
        elif record:
            lines.append(f"{precision}: recorded in {found.record.write(records or RECORDS)}")
        elif same:
            lines.append(f"{precision}: compared with the record of {same.date}")
        else:
            key = found.record.key.title
            lines.append(
                f"{precision}: no record of this conversion for {key}; it was compared with itself only"
            )
    out.print(table)
    for line in lines:
        console.print(line, soft_wrap=True)
    for line in failures:
        console.print(f"[red]differs:[/red] {line}", soft_wrap=True)
    out.print("Samples differ." if failures else "Everything that can be compared is the same.")
    if failures:
        raise typer.Exit(1)


def _from_record(speech: SpeechRecord, record: GoldenRecord | None, case: str) -> list[str]:
    if record is None:
        return []
    if case not in record.cases:
        return ["the record does not have this case; record it again with --record"]
    return list(speech.differences(record.cases[case], "the record"))


def examine(
    bundle: Path,
    precision: Precision,
    backend: Backend,
    *,
    cases: Sequence[Case] = CASES,
    report: Callable[[str], None] = lambda line: None,
) -> Examination:
    """Speak every case whole, in several chunk sizes and in another process; `report` is called with each part.

    Raises what opening a bundle raises, and BrokenProcessPool if the other process dies.
    """
    tts = open_voice(bundle, precision, backend)
    report(f"{precision}: another process")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        elsewhere = process.submit(_spoken_elsewhere, bundle, precision, backend, cases).result()
    records, failures = {}, {}
    for case in cases:
        report(f"{precision}: {case.name}")
        chunks = streamed(tts, case, **CHUNKING)
        records[case.name] = SpeechRecord.of(chunks)
        found = elsewhere[case.name].differences(records[case.name], "this process")
        failures[case.name] = (*found, *_failures(tts, case, np.concatenate(chunks), records[case.name]))
    source = tts.bundle.manifest.source
    record = GoldenRecord(
        key=golden_key(tts.bundle, backend),
        voice=source.sha256 if source.lora is None else f"{source.sha256}+{source.lora.sha256}",
        date=dt.datetime.now(dt.timezone.utc).date(),
        cases=records,
    )
    return Examination(record, failures)


def open_voice(bundle: Path, precision: str, backend: Backend) -> VoxCPM:
    """A bundle opened with the number of threads that records are made with.

    Raises InputError on a machine with fewer cores, and what opening a bundle raises.
    """
    if cores() < THREADS:
        raise InputError(f"records are made with {THREADS} threads, and this process may use {cores()} core")
    return VoxCPM.from_bundle(bundle, precision, backend, threads=THREADS)


def case_arguments(case: Case) -> dict[str, Any]:
    """The arguments of a case for `VoxCPM.speak`. A case is one utterance, whatever the default is."""
    arguments: dict[str, Any] = {
        "text": case.text, "seed": case.seed, "retry_badcase": False, "segment_tokens": SEGMENT_TOKENS, **LENGTHS,
    }  # fmt: skip
    if case.voice is not None:
        voice = next(voice for voice in prompt_voices() if voice.name == case.voice)
        arguments |= {"prompt_wav_path": prompt_clip(voice), "prompt_text": voice.transcript}
    return arguments


def streamed(tts: VoxCPM, case: Case, **chunking: Any) -> list[Audio]:
    """The chunks (samples,) of a case. chunking: the options of `VoxCPM.generate_streaming` for chunk sizes."""
    return list(tts.generate_streaming(**case_arguments(case), **chunking))


def _spoken_elsewhere(
    bundle: Path, precision: str, backend: Backend, cases: Sequence[Case]
) -> dict[str, SpeechRecord]:
    tts = open_voice(bundle, precision, backend)
    return {case.name: SpeechRecord.of(streamed(tts, case, **CHUNKING)) for case in cases}


def _failures(tts: VoxCPM, case: Case, expected: Audio, record: SpeechRecord) -> Iterator[str]:
    """A line for each other way to speak that gives other audio, with the chunk in which it differs first."""
    ways = {f"in chunks of {size}": streamed(tts, case, chunk_patches=size) for size in OTHER_CHUNKS}
    ways["whole"] = [tts.speak(**case_arguments(case)).audio]
    for how, chunks in ways.items():
        audio = np.concatenate(chunks)
        if len(audio) != len(expected):
            yield f"{how} {len(audio)} samples, streamed {len(expected)}"
            continue
        wrong = np.flatnonzero(pcm16(audio) != pcm16(expected))
        if len(wrong):
            chunk = int(np.searchsorted(record.boundaries, wrong[0], side="right"))
            yield f"chunk {chunk}: {how} {len(wrong)} samples differ, the first at {wrong[0]}"
