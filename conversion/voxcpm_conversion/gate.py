"""The gate: quantised packages are measured on a recorded sentence, and the weights that do most harm go back to fp16.

Published checkpoints are reported to lose their sibilants and their stop decisions in 8 bits, which random weights do
not show, so a conversion measures its own weights.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from pydantic import BaseModel
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from voxcpm_constants.errors import BundleError, first_line
from voxcpm_constants.manifest import VECTORS_FOLDER, Manifest, record_folder
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_constants.vectors import Array
from voxcpm_conversion.modules.voxcpm import VoxCPMModules
from voxcpm_conversion.recipes import BLOCK, Format
from voxcpm_conversion.recording import Outputs, Recording
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.bundle.opening import Bundle

Formats = Mapping[str, Format]
"""The format of each compressible weight, by its name in the fp16 program."""


class Floor(NamedTuple):
    """The lowest acceptable values of a figure."""

    int8: float
    int4: float
    reason: str


_LEAST = (
    "a correlation of 0.998; the built-in voice and random weights have 34 dB or more in int8, 19 in int4"
)
_EIGHT_BITS = "these step models have 8 bits in every recipe"
FLOORS: dict[str, Floor] = {
    "latents": Floor(25, 25, _EIGHT_BITS),
    "embeddings": Floor(25, 15, _LEAST),
    "hidden": Floor(25, 15, _LEAST),
    "hidden_states": Floor(25, 15, _LEAST),
    "fsq_hidden": Floor(18, 8, "values near the boundary of two levels flip: fp16 has only 38 to 45 dB"),
    "stop margin": Floor(20, 12, "the difference of both logits, which decides, however large they are"),
    "stop agreement": Floor(0.98, 0.95, "a wrong decision cuts speech off, or adds 160 ms"),
    "patch": Floor(25, 25, f"after all Euler steps, which accumulate errors; {_EIGHT_BITS}"),
    "audio": Floor(25, 25, _EIGHT_BITS),
    "audio 0-1 kHz": Floor(25, 25, _EIGHT_BITS),
    "audio 1-4 kHz": Floor(25, 25, _EIGHT_BITS),
    "audio 4-8 kHz": Floor(20, 20, "sibilants: broken ones are reported, the built-in voice has 35 dB"),
    "audio 8- kHz": Floor(15, 15, "little energy, whose error the bands below mask"),
    "flatness": Floor(0.9, 0.9, "of noisy frames, found over reference; 0.71 was heard as metallic (speech-core 76)"),
}  # fmt: skip
"""Figures in dB are ratios of signal to error. Any other is a share, of which 1 is the best."""

_SHARES = ("stop agreement", "flatness")
_BANDS = {"0-1": (0, 1000), "1-4": (1000, 4000), "4-8": (4000, 8000), "8-": (8000, 1e9)}
_QUIET = 1e-4
"""A band's error is compared with at least this share of the whole power: 40 dB below."""
_FRAME = 1024
_LIMIT = 65504.0
_NEAR_LIMIT = _LIMIT / 4
"""Other sentences have larger values."""


class Measured(BaseModel, extra="forbid", frozen=True):
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

    def write(self, path: Path) -> None:
        """Write a JSON file."""
        path.write_text(f"{self.model_dump_json(indent=1)}\n", encoding="utf-8")

    def line(self) -> str:
        """What was measured, and why weights were kept."""
        return f"{self.precision}/{self.package}: {', '.join(self.row()[2:])}"

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
        for step_model in manifest.step_models
        for package in manifest.parts(step_model)
    )
    return [Measured.model_validate_json(path.read_bytes()) for path in found if path.is_file()]


class Gate:
    """Measures the packages of one conversion."""

    def __init__(self, recording: Recording, manifest: Manifest) -> None:
        self._recording, self._manifest = recording, manifest

    def record(self, step_model: str, modules: VoxCPMModules) -> None:
        """Compute what the float32 modules of a step model return, while they are in memory."""
        for package in self._manifest.parts(step_model):
            self._recording.reference(package, modules)

    def judge(
        self, folder: Path, package: StepModel, precision: Precision, formats: Formats,
        rebuild: Callable[[Collection[str]], object],
    ) -> Measured:  # fmt: skip
        """Measure the package in `folder`, a bundle's folder with nothing else, and repair it if it is below a floor.

        rebuild(kept): writes the package again, with these weights in fp16.
        """
        recipe, kept, reason = dict[str, float](), list[str](), ""
        try:
            recipe = self._figures(folder, package, precision)
        except BundleError as error:  # As on a Mac whose Core ML rejects the package
            reason = first_line(error)
        figures = recipe
        if below(figures, precision):
            order = self._by_effect(package, formats)

            def holds(count: int) -> bool:
                return not below(self._expected(package, formats, order[:count]), precision)

            # A trial of the module takes a fraction of a conversion.
            count = bisect_left(range(len(order)), True, lo=1, key=holds)
            while below(figures, precision) and len(kept) < len(order):
                kept = order[:count]
                rebuild(kept)
                figures = self._figures(folder, package, precision)
                count += 1 + count // 4
        path = folder / self._manifest.package_path(precision, package.name)
        return Measured(
            package=package.name, precision=precision, recipe=recipe, figures=figures, kept=tuple(kept),
            unmeasured=reason, compressible=sum(form != "fp16" for form in formats.values()),
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
        model = load_step_models(bundle, names=[package.name])[package.name]
        return self._compared(package, self._recording.run(package, model))

    def _compared(self, package: StepModel, outputs: Outputs) -> dict[str, float]:
        rate = self._manifest.architecture.output_sample_rate
        return figures(outputs, self._recording.reference(package), rate)

    def _expected(self, package: StepModel, formats: Formats, kept: Collection[str] = ()) -> dict[str, float]:
        """The figures of the float32 module with weights in these formats, except those that are kept."""
        step = self._recording.float_step(package)
        for name, layer in _compressed_layers(step.module, formats).items():
            if name not in kept:
                layer.weight.data = quantised(layer.weight, formats[name])
        return self._compared(package, self._recording.run(package, step, whole=True))

    def _by_effect(self, package: StepModel, formats: Formats) -> list[str]:
        """The compressed weights, the most harmful first: by the error that each adds to its own layer's output."""
        step = self._recording.float_step(package)
        with _LocalErrors(_compressed_layers(step.module, formats), formats) as errors:
            self._recording.run(package, step, whole=True)
        return sorted(errors.shares, key=lambda name: -errors.shares[name])

    def overflow_lines(self) -> Iterator[str]:
        """A line for each package with values near fp16's largest one on the recorded sentence."""
        for step_model in self._manifest.step_models:
            for package in self._manifest.parts(step_model):
                if package.precision_in("fp16") == "fp32":
                    continue
                peak, layer = self._recording.peak(package)
                if not peak < _NEAR_LIMIT:
                    way_out = "--audio-vae-fp32" if step_model.startswith("audio_vae") else "--precision fp32"
                    yield (
                        f"{package.name}: values up to {peak:.0f} at {layer}, and float16 ends at {_LIMIT:.0f}; "
                        f"if it sounds wrong, convert with {way_out}"
                    )


class _LocalErrors(TorchFunctionMode):
    """While active, compares each product or convolution with that of its quantised weight, on the same input."""

    def __init__(self, layers: Mapping[str, Any], formats: Formats) -> None:
        super().__init__()
        self._names, self._formats = {id(layer.weight): name for name, layer in layers.items()}, formats
        self.shares = {name: 0.0 for name, form in formats.items() if form != "fp16"}
        """The sum over all calls of error to signal, by the weight's name."""

    def __torch_function__(self, function: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
        output = function(*arguments, **(named or {}))
        # x, weight, bias, …
        if len(arguments) > 2 and (name := self._names.get(id(arguments[1]))):
            x, weight, *others = arguments
            error = function(x, quantised(weight, self._formats[name]), *others, **(named or {})) - output
            # Only the difference of both stop logits decides, however large they are; other means matter little.
            noise, signal = (y - y.mean(-1, keepdim=True) for y in (error, output))
            self.shares[name] += float(noise.square().sum() / (signal.square().sum() + 1e-20))
        return output


def _compressed_layers(module: nn.Module, formats: Formats) -> dict[str, Any]:
    """The layers of a float32 module whose weights are compressed, by the weight's name in the fp16 program."""
    layers = {f"{name}.weight".replace(".", "_"): layer for name, layer in module.named_modules()}
    stems = {name: name.removesuffix("_to_fp16") for name, form in formats.items() if form != "fp16"}
    found = {name: layers.get(stem, layers.get(stem.removeprefix("step_"))) for name, stem in stems.items()}
    return {name: layer for name, layer in found.items() if layer is not None}


def quantised(weight: Tensor, form: Format) -> Tensor:
    """The weight as a format stores it, in float32: per row (int8), or per block of a row with an offset (int4)."""
    if form == "int8":
        scale = weight.abs().flatten(1).amax(1).clamp(min=1e-12).div(127).view(-1, *[1] * (weight.ndim - 1))
        return (weight / scale).round() * scale
    blocks = weight.view(len(weight), -1, BLOCK)
    low, high = blocks.amin(2, keepdim=True), blocks.amax(2, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-12)
    return (((blocks - low) / scale).round() * scale + low).view_as(weight)


def figures(found: Outputs, reference: Outputs, rate: int) -> dict[str, float]:
    """Every figure of a step model's outputs, by its name in `FLOORS`. rate: of audio, in Hz."""
    return {
        name: value
        for output in reference
        for name, value in _of(output, found[output], reference[output], rate)
    }


def _of(output: str, found: Array, reference: Array, rate: int) -> Iterator[tuple[str, float]]:
    if output == "stop_logits":
        decided, expected = found[:, 1] - found[:, 0], reference[:, 1] - reference[:, 0]
        yield "stop margin", _decibels(decided, expected)
        yield "stop agreement", float(((decided > 0) == (expected > 0)).mean())
        return
    yield output, _decibels(found, reference)
    if output == "audio":
        yield from _by_band(found, reference, rate)
        pair = flatness(found, rate, like=reference), flatness(reference, rate)
        yield "flatness", min(pair) / max(pair) if any(pair) else 1.0


def _decibels(found: Array, reference: Array) -> float:
    """Signal to error; -100 for NaN and infinities."""
    if not np.isfinite(found).all():
        return -100.0
    error = np.square(found.astype(np.float64) - reference).sum()
    return float(10 * np.log10((np.square(reference.astype(np.float64)).sum() + 1e-20) / (error + 1e-20)))


def _by_band(found: Array, reference: Array, rate: int) -> Iterator[tuple[str, float]]:
    frequencies = np.fft.rfftfreq(len(reference), 1 / rate)
    power, error = (np.square(np.abs(np.fft.rfft(x))) for x in (reference, np.nan_to_num(found) - reference))
    for band, (low, high) in _BANDS.items():
        inside = (frequencies >= low) & (frequencies < high)
        if inside.any():
            signal = max(power[inside].sum(), _QUIET * power.sum()) + 1e-20
            yield f"audio {band} kHz", float(10 * np.log10(signal / (error[inside].sum() + 1e-20)))


def flatness(audio: Array, rate: int, like: Array | None = None) -> float:
    """Mean spectral flatness above 1 kHz of the noisiest quarter of the loud frames of `like`, by default `audio`.

    audio, like: (samples,). 0.56 for white noise, near 0 for a tone, and 0 for less than four frames.
    """
    if len(audio) < 4 * _FRAME:
        return 0.0
    above = np.fft.rfftfreq(_FRAME, 1 / rate) > 1000
    spectra = [
        np.square(np.abs(np.fft.rfft(np.nan_to_num(_frames(x)) * np.hanning(_FRAME))))[:, above]
        for x in (audio, audio if like is None else like)
    ]
    mine, theirs = (np.exp(np.log(s + 1e-12).mean(1)) / (s.mean(1) + 1e-12) for s in spectra)
    loud = spectra[1].sum(1) >= _QUIET * spectra[1].sum(1).max()
    return float(mine[loud & (theirs >= np.quantile(theirs[loud], 0.75))].mean())


def _frames(audio: Array) -> Array:
    return audio[: len(audio) // _FRAME * _FRAME].reshape(-1, _FRAME)


def _floor(figure: str, precision: Precision) -> float:
    return FLOORS[figure].int4 if precision == "int4" else FLOORS[figure].int8


def margin(figure: str, value: float, precision: Precision) -> float:
    """How far a figure is above its floor: in dB, or for a share in thousandths."""
    return (value - _floor(figure, precision)) * (1000 if figure in _SHARES else 1)


def below(values: Mapping[str, float], precision: Precision) -> list[str]:
    """The figures below their floors."""
    return [name for name, value in values.items() if not margin(name, value, precision) >= 0]


def _shown(figure: str, value: float) -> str:
    return f"{value:.2f}" if figure in _SHARES else f"{value:.0f} dB"
