"""The doctor's report: the machine, what every step model did on every compute unit, the choice, and advice."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.macos import macos
from voxcpm_constants.step_models import AUDIO_VAE_DECODER, AUDIO_VAE_ENCODER, Precision
from voxcpm_constants.targets import CORE_AI
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, COREAI, CPU, PORTABLE
from voxcpm_runtime.backends.fallback import INSTALL_PORTABLE
from voxcpm_runtime.backends.machine import backends, build, chip, system
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.doctor.agreement import FLOORS
from voxcpm_runtime.doctor.endurance import Endurance
from voxcpm_runtime.doctor.systems import known_crash
from voxcpm_runtime.doctor.trials import Trial, fastest_correct

_LIBRARIES = ("voxcpm-coreml", "coremltools", "coreai-core", "onnxruntime", "onnx", "numpy")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(_Record):
    """The machine and the libraries of this project on it."""

    system: str
    build: str
    chip: str
    architecture: str
    processors: int | None
    python: str
    libraries: dict[str, str | None]
    """Installed versions; None for a library that is not installed."""
    backends: tuple[str, ...]


class Described(_Record):
    """The bundle, without its name."""

    generation: str
    precision: Precision
    audio_vae_fp32: bool = False
    target: str
    batch: int
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
    """Why no step model of the bundle was tried on Core ML: it needs a newer system."""
    known_crash: str = ""
    """What is known of this version of macOS; empty for most."""
    endurance: tuple[Endurance, ...] = ()
    """The trials of minutes, if they were asked for."""

    @property
    def chosen(self) -> dict[str, Trial]:
        """The fastest correct trial of each step model that has one, and that no trial of minutes ended."""
        lost = {
            (t.step_model, t.units[t.step_model]) for t in self._ended if t.precision == self.bundle.precision
        }
        return fastest_correct(t for t in self.trials if (t.step_model, t.unit) not in lost)

    @property
    def _ended(self) -> tuple[Endurance, ...]:
        return tuple(trial for trial in self.endurance if trial.outcome != "done")

    @property
    def healthy(self) -> bool:
        """Whether every step model has a correct unit."""
        return self.chosen.keys() == set(self.step_models)

    def advice(self) -> list[str]:
        """What to use, what failed, and what to do about it, one sentence each."""
        return [sentence for advise in _ADVICE for sentence in advise(self)]


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


def describe_bundle(bundle: Bundle) -> Described:
    """What a report says about a bundle."""
    manifest = bundle.manifest
    return Described(
        generation=manifest.architecture.generation,
        precision=bundle.precision,
        audio_vae_fp32=manifest.audio_vae_fp32,
        target=manifest.target,
        batch=manifest.sizes.batch,
        kv_length=manifest.sizes.kv_length,
        digest=bundle.digest,
        judged=bool(manifest.vector_files()),
    )


def report_of(
    bundle: Bundle, trials: Iterable[Trial], refusal: str = "", endurance: Iterable[Endurance] = ()
) -> Report:
    """The report of a bundle's trials on this machine. refusal, endurance: see `Report`."""
    return Report(
        machine=this_machine(),
        bundle=describe_bundle(bundle),
        floor=FLOORS[bundle.precision],
        step_models=tuple(bundle.manifest.step_models),
        trials=tuple(trials),
        refusal=refusal,
        known_crash=known_crash(macos()),
        endurance=tuple(endurance),
    )


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _unjudged(report: Report) -> Iterable[str]:
    if not report.bundle.judged:
        yield (
            "This bundle has no test vectors: its numbers cannot be judged, only timed. Convert the checkpoint again."
        )


def _refused(report: Report) -> Iterable[str]:
    if report.refusal:
        yield f"Core ML was not tried: {report.refusal}."


def _usable(report: Report) -> Iterable[str]:
    if not report.healthy:
        return
    portable = [name for name, trial in report.chosen.items() if trial.unit == PORTABLE]
    if len(portable) == len(report.chosen):
        yield "Every step model is correct on the portable backend."
        return
    if all(trial.unit == COREAI for trial in report.chosen.values()):
        yield "Every step model is correct on Core AI."
        return
    yield "Every step model is correct somewhere. What --compute-units auto uses has a star."
    if portable:
        yield f"Only the portable backend is correct for {', '.join(portable)}."


def _without_a_unit(report: Report) -> Iterable[str]:
    lost = [name for name in report.step_models if name not in report.chosen]
    if lost and report.bundle.judged:
        yield (
            f"No unit is correct for {', '.join(lost)}. Try another --precision, and please report it: attach what "
            "--json prints to an issue; it has no names and no paths."
        )
        if "portable" not in report.machine.backends and report.bundle.target != CORE_AI:
            yield f"The portable backend would be a way to speak: {INSTALL_PORTABLE}"


def _failures(report: Report) -> Iterable[str]:
    """One sentence for each way in which a step model failed on some units."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for trial in report.trials:
        if trial.outcome in _FAILED:
            grouped.setdefault((trial.step_model, trial.outcome, trial.message), []).append(trial.unit)
    for (name, outcome, message), units in grouped.items():
        yield f"{name} {_FAILED[outcome]} on {', '.join(units)}{f': {message}' if message else '.'}"


def _known_crash(report: Report) -> Iterable[str]:
    if report.known_crash:
        yield f"Known of {report.known_crash}."
        if not report.endurance and any(trial.unit in COMPUTE_UNITS for trial in report.trials):
            yield "Try it for longer with --minutes 30: the GPU takes the place of a CPU that ends the process."


def _lasting(report: Report) -> Iterable[str]:
    """What the trials of minutes found, and an fp32 AudioVAE where the CPU did not last."""
    for trial in report.endurance:
        vae = "The fp32 AudioVAE" if trial.precision != report.bundle.precision else "The chosen units"
        if trial.outcome == "done":
            yield f"{vae} lasted {trial.seconds / 60:.1f} minutes: {_units(trial.units)}."
        else:
            where = f"{_FAILED[trial.outcome]} on {trial.units[trial.step_model]}"
            after = f"after {trial.seconds / 60:.1f} minutes"
            yield f"{vae} did not last: {trial.step_model} {where} {after}: {trial.message}"
    if any(t.step_model in _AUDIO_VAE and t.units[t.step_model] == CPU for t in report.endurance):
        tried = any(trial.precision != report.bundle.precision for trial in report.endurance)
        if not tried and report.bundle.precision != "fp32" and not report.bundle.audio_vae_fp32:
            yield "An fp32 AudioVAE may last on the CPU: convert again with --audio-vae-fp32."


_AUDIO_VAE = (AUDIO_VAE_ENCODER, AUDIO_VAE_DECODER)


def _units(units: Mapping[str, str]) -> str:
    return ", ".join(f"{name} on {unit}" for name, unit in units.items())


def _too_slow(report: Report) -> Iterable[str]:
    if any(trial.outcome == "hung" for trial in report.trials):
        yield "What did not answer in time may only be slow to compile: give it longer with --timeout."


_FAILED = {
    "wrong": "gives wrong numbers",
    "refused": "is refused",
    "crashed": "ends the process",
    "hung": "does not answer in time",
}
"""Outcome -> what the advice says about it."""

_ADVICE: tuple[Callable[[Report], Iterable[str]], ...] = (
    _refused,
    _known_crash,
    _lasting,
    _usable,
    _unjudged,
    _without_a_unit,
    _failures,
    _too_slow,
)
