"""The doctor's report: the machine, the trials, the chosen unit of each step model, and advice."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from voxcpm_constants.targets import CORE_AI
from voxcpm_runtime.backends.core_ml.compute_units import COREAI, CPU, PORTABLE
from voxcpm_runtime.backends.loading import INSTALL_PORTABLE
from voxcpm_runtime.backends.machine import backends, build, chip, system
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.doctor.trials import Endurance, Trial, fastest_correct
from voxcpm_runtime.doctor.worker import FLOORS

_LIBRARIES = ("voxcpm-coreml", "coremltools", "coreai-core", "onnxruntime", "onnx", "numpy")
_FAILURES = {
    "wrong": "gives wrong results",
    "refused": "is rejected",
    "crashed": "crashes",
    "hung": "times out",
}
"""Outcome -> its description in the advice."""


@dataclass(frozen=True)
class DoctorReport:
    """The results of all trials of a bundle on this machine."""

    bundle: Bundle
    trials: Sequence[Trial]
    refusal: str = ""  # Why Core ML was not tried: the bundle needs a newer system
    endurance: Sequence[Endurance] = ()

    @property
    def chosen(self) -> dict[str, Trial]:
        """The fastest correct trial of each step model, ignoring units that failed in an endurance trial."""
        lost = {(t.step_model, t.units[t.step_model]) for t in self.endurance if t.outcome != "done"}
        return fastest_correct(t for t in self.trials if (t.step_model, t.unit) not in lost)

    @property
    def healthy(self) -> bool:
        """Whether every step model has a correct unit."""
        return self.chosen.keys() == self.bundle.manifest.step_models.keys()

    def advice(self) -> Iterator[str]:
        """Yield sentences on what to use, what failed, and what to do about it."""
        if self.refusal:
            yield f"Core ML was not tried: {self.refusal}."
        for trial in self.endurance:
            yield from self._endurance_advice(trial)
        yield from self._choice_advice()
        failures: dict[tuple[str, str, str], list[str]] = {}
        for found in self.trials:
            if found.outcome in _FAILURES:
                failures.setdefault((found.step_model, found.outcome, found.message), []).append(found.unit)
        for (name, outcome, message), units in failures.items():
            yield f"{name} {_FAILURES[outcome]} on {', '.join(units)}{f': {message}' if message else '.'}"
        if any(outcome == "hung" for _, outcome, _ in failures):
            yield "A step model that timed out may be slow to compile: increase --timeout."

    def _endurance_advice(self, trial: Endurance) -> Iterator[str]:
        minutes = f"{trial.seconds / 60:.1f} minutes"
        if trial.outcome == "done":
            units = ", ".join(f"{name} on {unit}" for name, unit in trial.units.items())
            yield f"The chosen units ran for {minutes} without failure: {units}."
            return
        unit = trial.units[trial.step_model]
        yield (
            f"The chosen units failed: {trial.step_model} {_FAILURES[trial.outcome]} on {unit} after "
            f"{minutes}: {trial.message}"
        )
        half = self.bundle.precision != "fp32" and not self.bundle.manifest.audio_vae_fp32
        if trial.step_model.startswith("audio_vae") and unit == CPU and half:
            yield "An fp32 AudioVAE may run on the CPU: convert again with --audio-vae-fp32."

    def _choice_advice(self) -> Iterator[str]:
        manifest = self.bundle.manifest
        units = {name: trial.unit for name, trial in self.chosen.items()}
        lost = ", ".join(name for name in manifest.step_models if name not in units)
        if not manifest.vector_files():
            yield "This bundle has no test vectors: results are timed, not judged. Convert the checkpoint again."
        elif lost:
            yield (
                f"No unit is correct for {lost}. Try another --precision, and please report it: attach the "
                "output of --json to an issue; it contains no names or paths."
            )
            if "portable" not in backends() and manifest.target != CORE_AI:
                yield f"The portable backend may work: {INSTALL_PORTABLE}"
        elif set(units.values()) == {PORTABLE}:
            yield "Every step model is correct on the portable backend."
            from voxcpm_runtime.backends.portable.kernels import lacks_compiler

            if lacks_compiler():
                yield "With a C++ compiler (Debian, Ubuntu: apt install g++), large int8 models are faster here."
        elif set(units.values()) == {COREAI}:
            yield "Every step model is correct on Core AI."
        else:
            yield "Every step model is correct on some unit. A star marks what --compute-units auto uses."
            if portable := [name for name, unit in units.items() if unit == PORTABLE]:
                yield f"Only the portable backend is correct for {', '.join(portable)}."

    def document(self, *, saved: bool) -> Any:
        """The report for `--json`, without names and paths. saved: whether the choice was saved."""
        bundle, manifest, anonymous = self.bundle, self.bundle.manifest, anonymizer(self.bundle.folder)

        def shown(trial: Trial | Endurance) -> dict[str, Any]:
            return {**trial.model_dump(mode="json"), "message": anonymous(trial.message)}

        return {
            "machine": this_machine(),
            "bundle": {
                "generation": manifest.architecture.generation,
                "precision": bundle.precision,
                "audio_vae_fp32": manifest.audio_vae_fp32,
                "target": manifest.target,
                "kv_length": manifest.sizes.kv_length,
                "digest": bundle.digest,
                "judged": bool(manifest.vector_files()),
            },
            "floor": FLOORS[bundle.precision],
            "step_models": list(manifest.step_models),
            "trials": [shown(trial) for trial in self.trials],
            "refusal": anonymous(self.refusal),
            "endurance": [shown(trial) for trial in self.endurance],
            "chosen": {name: trial.unit for name, trial in self.chosen.items()},
            "saved": saved,
            "advice": [anonymous(sentence) for sentence in self.advice()],
        }


def this_machine() -> dict[str, Any]:
    """This machine, and the versions of this project and its libraries; None for one that is not installed."""
    libraries: dict[str, str | None] = dict.fromkeys(_LIBRARIES)
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            libraries[name] = version(name)
    return {
        "system": system(),
        "build": build(),
        "chip": chip(),
        "architecture": platform.machine(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "libraries": libraries,
        "backends": backends(),
    }


# An absolute path, one in a home folder, or a file: URL, up to a space. Only its last part, a file name, is kept.
_PATH = re.compile(r"(?:file:/*)?(?<![\w.…])~?/(?:[^\s/'\"()<>,;:]+/)+([^\s/'\"()<>,;:]*)")


def anonymizer(folder: Path) -> Callable[[str], str]:
    """A function that replaces paths, user names and host names in a text by "…".

    folder: the bundle's. Its path and that of the home folder may contain spaces.
    """
    node = platform.node()
    words = {str(folder), str(folder.resolve()), os.path.expanduser("~"), node, node.partition(".")[0]}  # noqa: PTH111
    with contextlib.suppress(KeyError, OSError):  # a container's user may have no name
        words.add(getpass.getuser())
    # Longest first. Names of one or two letters would match everywhere.
    escaped = sorted((re.escape(word) for word in words if len(word) > 2), key=len, reverse=True)
    known = re.compile(rf"(?<!\w)(?:{'|'.join(escaped)})(?!\w)")
    return lambda text: _PATH.sub(r"…/\1", known.sub("…", text))
