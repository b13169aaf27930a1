"""The validation report: all figures, those below their floors, and tables as JSON, Markdown and text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from voxcpm_constants.manifest import MODEL_CARD_FILE
from voxcpm_constants.step_models import Precision
from voxcpm_conversion.model_card import table, with_validation
from voxcpm_runtime.storage.atomic_file import atomic_file, make_folder
from voxcpm_validation.end_to_end import EndToEnd
from voxcpm_validation.sensitivity import MARGIN, MIN_FLOOR, Sensitivity
from voxcpm_validation.step_agreement import PUBLISHED_FP16, StepAgreement

# Minimum correlations of step models. int8 has no floors: it is lossy, and its figures are only reported. So are those
# of int4's free-running and teacher-forced speech, which depend on the voice. int4's floors are 1.5 times as far from 1
# as the worst measured correlation.
STEP_FLOORS: dict[Precision, dict[str, float]] = {
    "fp32": dict.fromkeys(PUBLISHED_FP16, 0.999999),
    # The published figures are rounded to six places.
    "fp16": {name: figure - 5e-7 for name, figure in PUBLISHED_FP16.items()},
    "int4": {
        "audio_vae_encoder": 0.9994,
        "audio_vae_decoder": 0.9983,
        "feat_encoder": 0.997,
        "base_lm_step": 0.986,
        "residual_lm_step": 0.989,
        "locdit_step": 0.998,
    },
}
# Floors on Core AI's runtime. fp32 proves correctness. fp16's are for Apple's Linux runtime, which rounds every partial
# sum of a product, and say nothing about a GPU: 1.5 times as far from 1 as the worst length of the built-in voice
# (TRIALS.md).
CORE_AI_FLOORS: dict[Precision, dict[str, float]] = {
    "fp32": dict.fromkeys(PUBLISHED_FP16, 0.9999999),
    "fp16": {
        "audio_vae_encoder": 0.999987,
        "audio_vae_decoder": 0.999994,
        "feat_encoder": 0.999993,
        "base_lm_step": 0.99996,
        "residual_lm_step": 0.99998,
        "locdit_step": 0.99998,
    },
}
# Floors of speech apply to each case. Where upstream itself diverges under small perturbations, those of fp16 are
# lowered accordingly (`sensitivity`); a defect in the loop affects most patches, and so the median.
FREE_RUNNING_FLOORS: dict[Precision, float] = {"fp32": 0.99999, "fp16": 0.999}
TEACHER_FORCED_FLOORS: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.9999}
MEDIAN_PATCH_FLOORS: dict[Precision, float] = {"fp32": 0.999998, "fp16": 0.999998}
# The loss from 8-bit weights depends on the checkpoint; measured on the built-in voice only (TRIALS.md).
BUILT_IN_MEDIAN_PATCH_FLOORS: dict[Precision, float] = {**MEDIAN_PATCH_FLOORS, "int8": 0.995}
# Core AI's half precision on Linux: 1.5 times as far from 1 as the worst case of the built-in voice. Defects that pass
# these floors are caught in fp32, and by the floors of step models.
CORE_AI_FORCED_FLOORS: dict[Precision, float] = {**TEACHER_FORCED_FLOORS, "fp16": 0.9983}
CORE_AI_MEDIAN_FLOORS: dict[Precision, float] = {**MEDIAN_PATCH_FLOORS, "fp16": 0.9997}

_MEDIAN = "teacher-forced, median patch"


class MissedFloor(NamedTuple):
    """A figure of a case below its floor. judged: False if perturbed upstream is too low to judge it."""

    figure: str
    """Case, precision, name of the figure, and its value."""
    floor: float
    judged: bool


class ValidationReport(BaseModel, extra="forbid", frozen=True):
    """All figures of one bundle, and the versions of the packages that computed them."""

    bundle: str
    checkpoint: str
    built_in: bool = False
    """Whether the checkpoint is the built-in voice's."""
    tools: dict[str, str]
    sensitivity: tuple[Sensitivity, ...] = ()
    steps: tuple[StepAgreement, ...]
    end_to_end: tuple[EndToEnd, ...]
    notes: tuple[str, ...] = ()
    """Measurements that were reduced, and why."""

    @property
    def on_core_ai(self) -> bool:
        """Whether Apple's Core AI runtime computed the figures."""
        return any(step.arithmetic == "core-ai" for step in self.steps)

    def failures(self) -> list[str]:
        """One line for each figure that is below its floor or not finite."""
        lines = []
        floors = CORE_AI_FLOORS if self.on_core_ai else STEP_FLOORS
        for step in self.steps:
            what = f"{step.step_model} {step.precision} {step.arithmetic}"
            if not all(output.finite for output in step.outputs.values()):
                lines.append(f"{what}: not finite")
            floor = floors.get(step.floors_of, {}).get(step.step_model, -1.0)
            found = step.lowest if self.on_core_ai else step.correlation
            if step.arithmetic != "faithful" and found < floor:
                lines.append(f"{what}: correlation {found:.7f} is below {floor:.7f}")
        missed = (missed for missed in self._missed_floors() if missed.judged)
        return [*lines, *(f"{missed.figure} is below {missed.floor:.7g}" for missed in missed)]

    def unjudged(self) -> list[str]:
        """One line for each low figure that perturbed upstream does not reach with this text either."""
        return [
            f"{missed.figure} cannot be judged with this text, which perturbed upstream does not reproduce either"
            for missed in self._missed_floors()
            if not missed.judged
        ]

    def verdict(self) -> str:
        """The outcome of the validation, in one sentence."""
        count = len(self.failures())
        if not count:
            return "All judged figures are at or above their floors."
        return f"{count} figure{'s' * (count > 1)} below the floor or not finite."

    def _missed_floors(self) -> Iterable[MissedFloor]:
        perturbed = {(s.case, s.precision): s for s in self.sensitivity}
        for e in self.end_to_end:
            drift = perturbed.get((e.case, e.precision))
            yield from below_floors(e, drift, built_in=self.built_in, core_ai=self.on_core_ai)

    def write(self, folder: Path) -> None:
        """Write `validation.json` and `validation.md` into a folder, which is created if missing."""
        make_folder(folder)
        with atomic_file(folder / "validation.json") as file:
            file.write(self.model_dump_json(indent=1).encode() + b"\n")
        with atomic_file(folder / "validation.md") as file:
            file.write(self.markdown().encode())

    def markdown(self) -> str:
        """The report in Markdown: versions, tables, and the verdict."""
        lines = [f"# {Path(self.bundle).name} against {self.checkpoint}", ""]
        lines += [", ".join(f"{name} {version}" for name, version in self.tools.items()), ""]
        for title, header, rows in self.tables():
            lines += [f"## {title}", "", *table(header, rows)]
        lines += [line for note in self.notes for line in (note, "")]
        lines += ["## Verdict", "", self.verdict(), ""]
        for found in (self.failures(), self.unjudged()):
            lines += [*(f"- {line}" for line in found), ""] if found else []
        return "\n".join(lines)

    def tables(self) -> Iterable[tuple[str, list[str], list[list[str]]]]:
        """(title, header, rows) of each table that has rows."""
        tables = (
            (
                "Step models",
                ["step model", "precision", "arithmetic", "output", "correlation", "max abs error", "SNR dB", "calls"],
                [
                    [s.step_model, s.precision, s.arithmetic, name, f"{o.correlation:.7f}", f"{o.max_abs_error:.2e}",
                     f"{o.snr_db:.1f}", str(s.calls)]
                    for s in self.steps
                    for name, o in s.outputs.items()
                ],
            ),
            (
                "First outputs by the length of the call",
                ["step model", "precision", "arithmetic", "length", "correlation", "max abs error"],
                [
                    [s.step_model, s.precision, s.arithmetic, str(length), f"{a.correlation:.7f}",
                     f"{a.max_abs_error:.2e}"]
                    for s in self.steps
                    if len(s.lengths) > 1
                    for length, a in s.lengths.items()
                ],
            ),
            (
                "Waveform and stop decisions against upstream in fp32",
                ["step model", "precision", "figure", "dB or share"],
                [
                    [s.step_model, s.precision, name, f"{value:.2f}"]
                    for s in self.steps
                    if s.arithmetic != "faithful"
                    for name, value in s.heard.items()
                ],
            ),
            (
                "Operations near fp16's limit (65504)",
                ["step model", "precision", "operation", "max abs"],
                [
                    [s.step_model, s.precision, near.operation, f"{near.max_abs:.0f}"]
                    for s in self.steps
                    for near in s.near_fp16_limit
                ],
            ),
            (
                "End to end, same noise",
                ["case", "precision", "patches", "latents r", "waveform r", "waveform SNR dB", "forced, worst r",
                 "median r"],
                [
                    [e.case, e.precision, _patches(e), f"{e.free_running_latents.correlation:.7f}",
                     f"{e.waveform.correlation:.6f}", f"{e.waveform.snr_db:.1f}", f"{e.teacher_forced_worst:.7f}",
                     f"{e.teacher_forced_median:.7f}"]
                    for e in self.end_to_end
                ],
            ),
            (
                "Upstream against itself, with perturbed patches",
                ["case", "for", "perturbation", "latents r, lowest", "forced, worst r", "median r"],
                [
                    [s.case, s.precision, f"{s.disturbance:g}", f"{s.free_running:.7f}", f"{s.forced_worst:.7f}",
                     f"{s.forced_median:.7f}"]
                    for s in self.sensitivity
                ],
            ),
        )  # fmt: skip
        yield from (table for table in tables if table[2])


def below_floors(
    speech: EndToEnd, drift: Sensitivity | None = None, *, built_in: bool = False, core_ai: bool = False
) -> list[MissedFloor]:
    """The figures of a case below their floors. drift: the case's sensitivity, which lowers the floors.

    The median forced patch is always judged. built_in: the checkpoint is the built-in voice's. core_ai: the speech is
    Core AI's.
    """
    forced = CORE_AI_FORCED_FLOORS if core_ai else TEACHER_FORCED_FLOORS
    median = BUILT_IN_MEDIAN_PATCH_FLOORS if built_in else MEDIAN_PATCH_FLOORS
    median = CORE_AI_MEDIAN_FLOORS if core_ai else median
    free = speech.free_running_latents.correlation
    below = []
    for figure, value, floors, name in (
        ("free-running latents", free, FREE_RUNNING_FLOORS, "free_running"),
        ("teacher-forced, worst patch", speech.teacher_forced_worst, forced, "forced_worst"),
        (_MEDIAN, speech.teacher_forced_median, median, "forced_median"),
    ):
        floor, judged = floors.get(speech.precision, -1.0), True
        if drift is not None:
            perturbed = getattr(drift, name)
            # No margin for the median: a defect of 1 % in the loop would fit into it.
            floor = drift.floor(perturbed, floor, margin=1.0 if figure == _MEDIAN else MARGIN)
            judged = figure == _MEDIAN or perturbed >= MIN_FLOOR
        if not value >= floor:  # NaN is below every floor
            found = f"{speech.case} {speech.precision}: {figure}: correlation {value:.7f}"
            below.append(MissedFloor(found, floor, judged))
    return below


def _patches(speech: EndToEnd) -> str:
    same = speech.patches == speech.upstream_patches
    return str(speech.patches) if same else f"{speech.patches} (upstream {speech.upstream_patches})"


def add_to_model_card(bundle: Path, report: ValidationReport) -> bool:
    """Write the report's correlations into a bundle's README.md, replacing earlier ones.

    Returns False without changes if the bundle has no model card from the conversion, or if the card is a symlink, as
    in a hub's cache. Raises OSError if the card cannot be written.
    """
    card = bundle / MODEL_CARD_FILE
    if card.is_symlink() or not card.is_file():
        return False
    text = with_validation(card.read_text(encoding="utf-8"), card_section(report))
    if text is None:
        return False
    with atomic_file(card) as file:
        file.write(text.encode())
    return True


def card_section(report: ValidationReport) -> str:
    """The correlations of a report in Markdown: each step model by precision, then whole utterances."""
    figures = {(s.step_model, s.precision): s.correlation for s in report.steps if s.arithmetic != "faithful"}
    models = list(dict.fromkeys(model for model, _ in figures))
    precisions = list(dict.fromkeys(precision for _, precision in figures))
    runtime = "Core AI" if report.on_core_ai else "ONNX Runtime"
    versions = ", ".join(f"{name} {version}" for name, version in report.tools.items())
    return "\n".join(
        [
            f"Correlation with upstream's PyTorch code, by `voxcpm-coreml validate` ({versions}). The step models ran",
            f"on {runtime}, with upstream's inputs and state:",
            "",
            *table(
                ("step model", *precisions),
                ([model, *(f"{figures[model, p]:.6f}" for p in precisions)] for model in models),
            ),
            "Whole utterances with the same noise, where every patch depends on the previous ones:",
            "",
            *table(
                ("case", "precision", "patches", "latents", "waveform"),
                (
                    [e.case, e.precision, str(e.patches),
                     f"{e.free_running_latents.correlation:.6f}", f"{e.waveform.correlation:.6f}"]
                    for e in report.end_to_end
                ),
            ),
            *report.notes,
            *(f"- Below its floor: {line}" for line in report.failures()),
        ]
    )  # fmt: skip
