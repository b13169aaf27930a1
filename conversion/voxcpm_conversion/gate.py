"""The gate: quantised packages are measured on a recorded sentence, and the weights that do most harm go back to fp16.

Published checkpoints are reported to lose their sibilants and their stop decisions in 8 bits, which random weights do
not show, so a conversion measures its own weights.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
from torch import Tensor, nn

from voxcpm_constants.errors import BundleError, VoxCPMWarning, first_line
from voxcpm_constants.json_files import Record
from voxcpm_constants.manifest import VECTORS_FOLDER, Manifest, record_folder
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_constants.user_folders import CACHE_VARIABLE
from voxcpm_constants.vectors import Array
from voxcpm_conversion.modules.voxcpm import VoxCPMModules
from voxcpm_conversion.recipes import BLOCK, MIN_ELEMENTS, RECIPES, Format, chosen_format
from voxcpm_conversion.recording import WEIGHTED, Heard, Outputs, Recording
from voxcpm_runtime.backends.core_ml.compute_units import PORTABLE
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.backends.machine import backends
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.storage.process_memory import return_freed_memory

_LEAST = "a correlation of 0.998; random weights and the built-in voice have 33 dB in int8, 18 in int4"
_EIGHT_BITS = "these step models have 8 bits in every recipe"
FLOORS: dict[str, tuple[float, float, str]] = {
    "latents": (25, 25, _EIGHT_BITS),
    "embeddings": (25, 15, _LEAST),
    "hidden": (25, 15, _LEAST),
    "hidden_states": (25, 15, _LEAST),
    "fsq_hidden": (18, 8, "values near the boundary of two levels flip: fp16 has only 38 to 45 dB"),
    "stop margin": (20, 12, "the difference of both logits, which decides, however large they are"),
    "stop agreement": (0.98, 0.95, "a wrong decision cuts speech off, or adds 160 ms"),
    "patch": (25, 25, f"after all Euler steps, which accumulate errors; {_EIGHT_BITS}"),
    "audio": (25, 25, _EIGHT_BITS),
    "audio 0-1 kHz": (25, 25, _EIGHT_BITS),
    "audio 1-4 kHz": (25, 25, _EIGHT_BITS),
    "audio 4-8 kHz": (20, 20, "sibilants: broken ones are reported, the built-in voice has 35 dB"),
    "audio 8- kHz": (15, 15, "little energy, whose error the bands below mask"),
    "flatness": (0.9, 0.9, "of noisy frames, found over reference; 0.71 was heard as metallic (speech-core 76)"),
}  # fmt: skip
"""The lowest acceptable value of each figure in int8 and in int4, and the reason. Ratios of signal to error in dB;
`_SHARES` are shares, of which 1 is the best.
"""

_SHARES = ("stop agreement", "flatness")
_BANDS = {"0-1": (0, 1000), "1-4": (1000, 4000), "4-8": (4000, 8000), "8-": (8000, 1e9)}
_SPARE, _STEP = 0.5, 3.0
"""In dB: how far above its floor a figure is to be, and how far errors are to fall for a share below its floor."""
_QUIET = 1e-4
"""A band's error is compared with at least this share of the whole power: 40 dB below."""
_FRAME = 1024
_LIMIT = 65504.0
_NEAR_LIMIT = _LIMIT / 4
"""Other sentences have larger values."""


class Measured(Record):
    """The figures of one quantised package, and the weights that stayed in fp16."""

    package: str
    precision: Precision
    recipe: dict[str, float]
    """Figures with the recipe's formats."""
    figures: dict[str, float]
    """Figures of the package as it is."""
    kept: tuple[str, ...]
    """Weights in fp16 instead of the recipe's format, the most harmful first."""
    compressible: int
    bytes: int
    unmeasured: str = ""
    """Why there are no figures; empty if there are."""

    def row(self) -> tuple[str, str, str, str, str]:
        """Precision, package, worst figure by the recipe, weights in fp16 with the figure now, and size."""
        megabytes = f"{self.bytes / 1e6:.1f} MB"
        if self.unmeasured:
            return self.precision, self.package, f"not measured ({self.unmeasured})", "", megabytes
        worst = min(self.recipe, key=lambda name: margin(name, self.recipe[name], self.precision))
        figure = f"{worst} {_shown(worst, self.recipe[worst])}"
        outcome = f"{len(self.kept)} of {self.compressible} weights in fp16"
        if self.kept:
            outcome += f", as the floor is {_shown(worst, _floor(worst, self.precision))}: now "
            outcome += _shown(worst, self.figures[worst])
        if low := below(self.figures, self.precision):
            outcome += f"; below the floor: {', '.join(low)}"
        return self.precision, self.package, figure, outcome, megabytes


def measured_path(precision: Precision, package: str) -> str:
    """Path of a package's figures, relative to the bundle: next to the vectors."""
    return f"{VECTORS_FOLDER}/{precision}/{package}.json"


def measurements(bundle: Path, manifest: Manifest) -> list[Measured]:
    """The figures of a bundle's quantised packages."""
    found = (
        bundle / measured_path(precision, package.name)
        for precision in manifest.precisions
        for package in manifest.packages
    )
    return [Measured.model_validate_json(path.read_bytes()) for path in found if path.is_file()]


_Choice = tuple[dict[str, float], list[str], int]
"""Figures by the recipe, the compressible weights with the most harmful first, and how many of them stay in fp16."""


class Gate:
    """Measures the packages of one conversion."""

    def __init__(self, recording: Recording, manifest: Manifest) -> None:
        self._recording, self._manifest = recording, manifest
        self._choices: dict[tuple[str, Precision], _Choice] = {}

    def record(self, step_model: str, modules: VoxCPMModules) -> None:
        """Compute what the float32 modules of a step model return, and choose; both need weights, and change them."""
        packages, precisions = self._manifest.parts(step_model), self._manifest.precisions
        for package in packages:
            self._recording.reference(package, modules)
        for precision in [p for p in precisions if packages[0].precision_in(p) in RECIPES][:1]:
            for package in packages:
                self._choose(package, precision, modules)

    def kept(self, package: StepModel, precision: Precision) -> list[str]:
        """The weights that stay in fp16, by their names in the module."""
        _, order, count = self._choose(package, precision)
        return order[:count]

    def judge(
        self, folder: Path, package: StepModel, precision: Precision, rebuild: Callable[[Collection[str]], object]
    ) -> Measured:  # fmt: skip
        """Measure the package in `folder`, a bundle's folder with nothing else, and repair it if it is below a floor.

        rebuild(kept): writes the package again, with these weights in fp16.
        """
        recipe, order, count = self._choose(package, precision)
        figures, reason = recipe, ""
        try:
            figures = self._figures(folder, package, precision)
            while below(figures, precision) and count < len(order):
                count += 1 + count // 4
                rebuild(order[:count])
                figures = self._figures(folder, package, precision)
        except BundleError as error:  # As on a Mac whose Core ML rejects the package
            reason = first_line(error)
        path = folder / self._manifest.package_path(precision, package.name)
        return Measured(
            package=package.name, precision=precision, recipe=recipe, figures=figures, kept=tuple(order[:count]),
            unmeasured=reason, compressible=len(order),
            bytes=sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
        )  # fmt: skip

    def _figures(self, folder: Path, package: StepModel, precision: Precision) -> dict[str, float]:
        alone = self._manifest.model_copy(
            update={
                "step_models": {package.name: package},
                "sizes": self._manifest.sizes.model_copy(update={"base_lm_parts": 1}),
                "files": record_folder(folder),
            }
        )
        # Step models need neither constants nor a tokenizer.
        bundle = Bundle(folder, alone, precision, {}, cast(Any, None))
        gc.collect()  # coremltools' programs have reference cycles
        return_freed_memory()
        with _without_cache():
            model = load_step_models(bundle, names=[package.name])[package.name]
            return self._compared(package, self._recording.run(package, model))

    def _compared(self, package: StepModel, outputs: Outputs) -> dict[str, float]:
        rate = self._manifest.architecture.output_sample_rate
        return figures(outputs, self._recording.reference(package), rate)

    def _choose(
        self, package: StepModel, precision: Precision, modules: VoxCPMModules | None = None
    ) -> _Choice:
        """Quantise the float32 module, and restore as many weights as the floors need. modules: see `float_step`."""
        if (key := (package.name, precision)) in self._choices:
            return self._choices[key]
        self._recording.reference(package)
        heard, step = self._recording.heard[package.name], self._recording.float_step(package, modules)
        layers, harm = dict[str, nn.Module](), dict[str, float]()
        for name, layer in step.module.named_modules():
            if name in heard and isinstance(layer, WEIGHTED) and layer.weight.numel() > MIN_ELEMENTS:
                weight = f"{name}.weight".replace(".", "_")
                form = chosen_format(precision, package.name, weight, tuple(layer.weight.shape))
                layers[weight], harm[weight] = layer, quantise(layer, form, heard[name])
        order = sorted(harm, key=lambda name: -harm[name])
        # The errors of the weights from each one on; in the sum of independent errors, powers add up.
        rest = np.cumsum([harm[name] for name in reversed(order)])[::-1]
        recipe = found = self._compared(package, self._recording.run(package, step))
        count = 0
        while (low := below(found, precision)) and count < len(order):
            lacking = max(_STEP if name in _SHARES else -margin(name, found[name], precision) for name in low)
            enough = np.searchsorted(-rest, -rest[count] * 10 ** (-(lacking + _SPARE) / 10))
            restored, count = count, max(count + 1, int(enough))
            for name in order[restored:count]:
                step.restore(layers[name])
            found = self._compared(package, self._recording.run(package, step))
        self._choices[key] = recipe, order, count
        return self._choices[key]

    def overflow_lines(self) -> Iterator[str]:
        """A line for each package with values near fp16's largest one on the recorded sentence."""
        for package in self._manifest.packages:
            if package.precision_in("fp16") == "fp32":
                continue
            self._recording.reference(package)
            heard = self._recording.heard[package.name]
            layer = max(heard, key=lambda name: heard[name].peak)
            if not heard[layer].peak < _NEAR_LIMIT:
                way_out = "--audio-vae-fp32" if package.name.startswith("audio_vae") else "--precision fp32"
                yield (
                    f"{package.name}: values up to {heard[layer].peak:.0f} at {layer}, and float16 ends at "
                    f"{_LIMIT:.0f}; if it sounds wrong, convert with {way_out}"
                )


@contextmanager
def _without_cache() -> Iterator[None]:
    """Keep no compiled or prepared form of packages, which may be rejected: no cache can be written below a file."""
    if PORTABLE in backends():
        from voxcpm_runtime.backends.portable.kernels import available_operators

        available_operators()  # These are kept
    variables = {CACHE_VARIABLE: str(Path(__file__, "none"))}
    with mock.patch.dict(os.environ, variables), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*cannot be saved", VoxCPMWarning)
        yield


def quantise(layer: Any, form: Format, heard: Heard) -> float:
    """Give a layer's weight a format's values in place. Returns the error of its outputs, as a share of their power.

    It is estimated by the squares of errors of weights times those of their inputs, as if inputs were independent.
    """
    weight = layer.weight.data
    # Formats have scales per output, which is a transposed convolution's second axis.
    rows = weight.transpose(0, 1) if isinstance(layer, nn.ConvTranspose1d) else weight
    found = _stored(rows, form)
    errors = found - rows
    rows.copy_(found)
    groups, stride = getattr(layer, "groups", 1), layer.stride[0] if isinstance(layer, nn.Conv1d) else 1
    if groups == 1:
        errors -= errors.mean(0)
    powers = errors.square_().view(*errors.shape[:2], -1).sum(2)
    energies = heard.inputs.view(groups, -1).repeat_interleave(len(rows) // groups, 0)
    return float((powers * energies).sum()) / stride / (heard.outputs + 1e-20)


def _stored(rows: Tensor, form: Format) -> Tensor:
    """Weights in a format, as float32: scaled per row (int8), or per block of a row with an offset (int4)."""
    if form == "int8":
        scale = rows.abs().flatten(1).amax(1).clamp(min=1e-12).div(127).view(-1, *[1] * (rows.ndim - 1))
        return (rows / scale).round() * scale
    blocks = rows.view(len(rows), -1, BLOCK)
    low, high = blocks.amin(2, keepdim=True), blocks.amax(2, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-12)
    return (((blocks - low) / scale).round() * scale + low).view_as(rows)


def figures(found: Outputs, reference: Outputs, rate: int) -> dict[str, float]:
    """Every figure of a step model's outputs, by its name in `FLOORS`. rate: of audio, in Hz."""
    values = {
        name: _decibels(found[name], array) for name, array in reference.items() if name != "stop_logits"
    }
    if "audio" in reference:
        audio, original = found["audio"], reference["audio"]
        pair = flatness(audio, rate, like=original), flatness(original, rate)
        values |= _by_band(audio, original, rate) | {"flatness": min(pair) / max(pair) if any(pair) else 1.0}
    if "stop_logits" in reference:
        decided, expected = (
            each["stop_logits"][:, 1] - each["stop_logits"][:, 0] for each in (found, reference)
        )
        values["stop margin"] = _decibels(decided, expected)
        values["stop agreement"] = float(((decided > 0) == (expected > 0)).mean())
    return values


def _decibels(found: Array, reference: Array) -> float:
    """Signal to error; -100 for NaN and infinities."""
    if not np.isfinite(found).all():
        return -100.0
    error = np.square(found.astype(np.float64) - reference).sum()
    return float(10 * np.log10((np.square(reference.astype(np.float64)).sum() + 1e-20) / (error + 1e-20)))


def _by_band(found: Array, reference: Array, rate: int) -> dict[str, float]:
    frequencies = np.fft.rfftfreq(len(reference), 1 / rate)
    power, error = (np.square(np.abs(np.fft.rfft(x))) for x in (reference, np.nan_to_num(found) - reference))
    inside = {band: (frequencies >= low) & (frequencies < high) for band, (low, high) in _BANDS.items()}
    return {
        f"audio {band} kHz": float(
            10 * np.log10((max(power[own].sum(), _QUIET * power.sum()) + 1e-20) / (error[own].sum() + 1e-20))
        )
        for band, own in inside.items()
        if own.any()
    }


def flatness(audio: Array, rate: int, like: Array | None = None) -> float:
    """Mean spectral flatness above 1 kHz of the noisiest quarter of the loud frames of `like`, by default `audio`.

    audio, like: (samples,). 0.56 for white noise, near 0 for a tone, and 0 for less than four frames.
    """
    if len(audio) < 4 * _FRAME:
        return 0.0
    above = np.fft.rfftfreq(_FRAME, 1 / rate) > 1000
    pair = (
        x[: len(x) // _FRAME * _FRAME].reshape(-1, _FRAME) for x in (audio, audio if like is None else like)
    )
    spectra = [np.square(np.abs(np.fft.rfft(np.nan_to_num(x) * np.hanning(_FRAME))))[:, above] for x in pair]
    mine, theirs = (np.exp(np.log(s + 1e-12).mean(1)) / (s.mean(1) + 1e-12) for s in spectra)
    loud = spectra[1].sum(1) >= _QUIET * spectra[1].sum(1).max()
    return float(mine[loud & (theirs >= np.quantile(theirs[loud], 0.75))].mean())


def _floor(figure: str, precision: Precision) -> float:
    int8, int4, _ = FLOORS[figure]
    return int4 if precision == "int4" else int8


def margin(figure: str, value: float, precision: Precision) -> float:
    """How far a figure is above its floor: in dB, or for a share in thousandths."""
    return (value - _floor(figure, precision)) * (1000 if figure in _SHARES else 1)


def below(values: Mapping[str, float], precision: Precision) -> list[str]:
    """The figures below their floors."""
    return [name for name, value in values.items() if not margin(name, value, precision) >= 0]


def _shown(figure: str, value: float) -> str:
    return f"{value:.2f}" if figure in _SHARES else f"{value:.0f} dB"
