"""The doctor's report: the machine, what every step model did on every compute unit, the choice, and advice."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.macos import MacOS, macos
from voxcpm_constants.step_models import AUDIO_VAE_DECODER, AUDIO_VAE_ENCODER, Precision
from voxcpm_constants.targets import CORE_AI
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, COREAI, CPU, PORTABLE
from voxcpm_runtime.backends.loading import INSTALL_PORTABLE
from voxcpm_runtime.backends.machine import backends, build, chip, system
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.doctor.agreement import FLOORS
from voxcpm_runtime.doctor.trials import Endurance, Trial, fastest_correct

_LIBRARIES = ("voxcpm-coreml", "coremltools", "coreai-core", "onnxruntime", "onnx", "numpy")
_KNOWN_CRASHES: tuple[tuple[Callable[[tuple[int, ...]], bool], str], ...] = (
    (
        lambda version: version[0] == 14,
        (
            "the CPU path (BNNS) ended the process at every prediction of one fp16 model (14.8.7), and never on 15.7 "
            "(FluidAudio issue 878)"
        ),
    ),
    (
        lambda version: version[:2] in ((26, 4), (26, 5)),
        (
            "the CPU path (BNNS) ended the process after minutes or hours, on any compute unit; macOS 26.6 is clean, "
            "iOS from 26.4 on is not (FluidAudio issues 587, 817, 818 and 844)"
        ),
    ),
)
"""Versions of macOS whose Core ML crashed with models like ours, by public reports from real hardware."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(_Record):
    """The machine, and the versions of this project and its libraries."""

    system: str
    build: str
    chip: str
    architecture: str
    processors: int | None
    python: str
    libraries: dict[str, str | None]
    """Versions; None for a library that is not installed."""
    backends: tuple[str, ...]


class Described(_Record):
    """The bundle, without its name."""

    generation: str
    precision: Precision
    audio_vae_fp32: bool = False
    target: str
    kv_length: int
    digest: str
    judged: bool
    """Whether it has test vectors."""


class Report(_Record):
    """Everything that the doctor found."""

    machine: Machine
    bundle: Described
    floor: float
    """The lowest correlation that counts as correct in this precision."""
    step_models: tuple[str, ...]
    trials: tuple[Trial, ...]
    refusal: str = ""
    """Why nothing was tried on Core ML: the bundle needs a newer system."""
    known_crash: str = ""
    """A known crash of this version of macOS; empty for most."""
    endurance: tuple[Endurance, ...] = ()
    """The trials of minutes."""

    @property
    def chosen(self) -> dict[str, Trial]:
        """The fastest correct trial of each step model, without units that failed in a trial of minutes."""
        lost = {
            (t.step_model, t.units[t.step_model])
            for t in self.endurance
            if t.outcome != "done" and t.precision == self.bundle.precision
        }
        return fastest_correct(t for t in self.trials if (t.step_model, t.unit) not in lost)

    @property
    def healthy(self) -> bool:
        """Whether every step model has a correct unit."""
        return self.chosen.keys() == set(self.step_models)

    def advice(self) -> list[str]:
        """What to use, what failed, and what to do about it, one sentence each."""
        return list(_advice(self))


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        system=system(),
        build=build(),
        chip=chip(),
        architecture=platform.machine(),
        processors=os.cpu_count(),
        python=platform.python_version(),
        libraries={name: _version(name) for name in _LIBRARIES},
        backends=backends(),
    )


def report_of(
    bundle: Bundle, trials: Iterable[Trial], refusal: str = "", endurance: Iterable[Endurance] = ()
) -> Report:
    """The report of a bundle's trials on this machine. refusal, endurance: see `Report`."""
    manifest = bundle.manifest
    described = Described(
        generation=manifest.architecture.generation,
        precision=bundle.precision,
        audio_vae_fp32=manifest.audio_vae_fp32,
        target=manifest.target,
        kv_length=manifest.sizes.kv_length,
        digest=bundle.digest,
        judged=bool(manifest.vector_files()),
    )
    return Report(
        machine=this_machine(),
        bundle=described,
        floor=FLOORS[bundle.precision],
        step_models=tuple(manifest.step_models),
        trials=tuple(trials),
        refusal=refusal,
        known_crash=known_crash(macos()),
        endurance=tuple(endurance),
    )


def known_crash(system: MacOS | None) -> str:
    """The known crash of this system, with its source, in one sentence; empty for all others."""
    if system is not None:
        for affects, reported in _KNOWN_CRASHES:
            if affects(system.version):
                return f"{system}: {reported}"
    return ""


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


_AUDIO_VAE = (AUDIO_VAE_ENCODER, AUDIO_VAE_DECODER)
_FAILED = {
    "wrong": "gives wrong numbers",
    "refused": "is refused",
    "crashed": "ends the process",
    "hung": "does not answer in time",
}
"""Outcome -> what the advice says about it."""


def _advice(report: Report) -> Iterator[str]:
    if report.refusal:
        yield f"Core ML was not tried: {report.refusal}."
    if report.known_crash:
        yield f"Known of {report.known_crash}."
        if not report.endurance and any(trial.unit in COMPUTE_UNITS for trial in report.trials):
            yield "Try it for longer with --minutes 30: the GPU replaces a CPU path that ends the process."
    yield from _endurance_advice(report)
    yield from _choice_advice(report)
    for (name, outcome, message), units in _failures(report).items():
        yield f"{name} {_FAILED[outcome]} on {', '.join(units)}{f': {message}' if message else '.'}"
    if any(trial.outcome == "hung" for trial in report.trials):
        yield "A step model that did not answer in time may be slow to compile: give it longer with --timeout."


def _endurance_advice(report: Report) -> Iterator[str]:
    for trial in report.endurance:
        vae = "The fp32 AudioVAE" if trial.precision != report.bundle.precision else "The chosen units"
        minutes = f"{trial.seconds / 60:.1f} minutes"
        if trial.outcome == "done":
            yield f"{vae} lasted {minutes}: {_units(trial.units)}."
        else:
            where = f"{_FAILED[trial.outcome]} on {trial.units[trial.step_model]}"
            yield f"{vae} did not last: {trial.step_model} {where} after {minutes}: {trial.message}"
    if any(t.step_model in _AUDIO_VAE and t.units[t.step_model] == CPU for t in report.endurance):
        tried = any(trial.precision != report.bundle.precision for trial in report.endurance)
        if not tried and report.bundle.precision != "fp32" and not report.bundle.audio_vae_fp32:
            yield "An fp32 AudioVAE may last on the CPU: convert again with --audio-vae-fp32."


def _choice_advice(report: Report) -> Iterator[str]:
    portable = [name for name, trial in report.chosen.items() if trial.unit == PORTABLE]
    lost = [name for name in report.step_models if name not in report.chosen]
    if not lost and len(portable) == len(report.chosen):
        yield "Every step model is correct on the portable backend."
    elif not lost and all(trial.unit == COREAI for trial in report.chosen.values()):
        yield "Every step model is correct on Core AI."
    elif not lost:
        yield "Every step model is correct somewhere. A star marks what --compute-units auto uses."
        if portable:
            yield f"Only the portable backend is correct for {', '.join(portable)}."
    if not report.bundle.judged:
        yield (
            "This bundle has no test vectors: its numbers cannot be judged, only timed. Convert the checkpoint again."
        )
    elif lost:
        yield (
            f"No unit is correct for {', '.join(lost)}. Try another --precision, and please report it: attach the "
            "output of --json to an issue; it contains no names or paths."
        )
        if "portable" not in report.machine.backends and report.bundle.target != CORE_AI:
            yield f"The portable backend may work: {INSTALL_PORTABLE}"


def _failures(report: Report) -> dict[tuple[str, str, str], list[str]]:
    """The units on which a step model failed, by step model, outcome and message."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for trial in report.trials:
        if trial.outcome in _FAILED:
            grouped.setdefault((trial.step_model, trial.outcome, trial.message), []).append(trial.unit)
    return grouped


def _units(units: Mapping[str, str]) -> str:
    return ", ".join(f"{name} on {unit}" for name, unit in units.items())
