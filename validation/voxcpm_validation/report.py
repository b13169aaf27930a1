"""The report of a validation: all figures, those below their floors, and tables as JSON, Markdown and text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import Precision
from voxcpm_validation.end_to_end import EndToEnd
from voxcpm_validation.sensitivity import Sensitivity
from voxcpm_validation.step_agreement import PUBLISHED_FP16, StepAgreement

# Lowest correlations that a bundle must reach. int8's step models have no floors: they are lossy, and their figures are
# only reported. So are those of int4's free-running and teacher-forced speech, which depend on the voice. The floors of
# int4's step models are 1.5 times as far from 1 as the worst measured correlation.
STEP_FLOORS: dict[Precision, dict[str, float]] = {
    "fp32": dict.fromkeys(PUBLISHED_FP16, 0.99999),
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
# Of free runs and their worst forced patch. In a checkpoint whose runs part over small differences, those of fp16 are
# lowered to what upstream itself does (`sensitivity`).
FREE_RUNNING_FLOORS: dict[Precision, float] = {"fp32": 0.99999, "fp16": 0.999}
TEACHER_FORCED_FLOORS: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.9999}
# Of the median forced patch in the best case, never lowered: a level of the quantiser that rounds differently spoils
# some patches, or all after it in one case; a defect of the loop spoils most patches of every case.
MEDIAN_PATCH_FLOORS: dict[Precision, float] = {"fp32": 0.999998, "fp16": 0.999998, "int8": 0.998}


class Report(BaseModel):
    """All figures of one bundle, and the versions of the packages that computed them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: str
    checkpoint: str
    tools: dict[str, str]
    sensitivity: tuple[Sensitivity, ...] = ()
    steps: tuple[StepAgreement, ...]
    end_to_end: tuple[EndToEnd, ...]

    def failures(self) -> list[str]:
        """One line for each figure that is below its floor or not finite."""
        return [*self._step_failures(), *self._speech_failures(), *self._median_patch_failures()]

    def _step_failures(self) -> Iterable[str]:
        for step in self.steps:
            what = f"{step.step_model} {step.precision} {step.arithmetic}"
            if not all(output.finite for output in step.outputs.values()):
                yield f"{what}: not finite"
            floor = STEP_FLOORS.get(step.precision, {}).get(step.step_model)
            if step.arithmetic == "plain" and floor is not None and step.correlation < floor:
                yield f"{what}: correlation {step.correlation:.7f} is below {floor:.7f}"

    def _speech_failures(self) -> Iterable[str]:
        disturbed = {s.precision: s for s in self.sensitivity}
        for speech in self.end_to_end:
            for what, value, floor in below_floors(speech, disturbed.get(speech.precision)):
                yield f"{speech.case} {speech.precision}: {what}: correlation {value:.6f} is below {floor:.6g}"

    def _median_patch_failures(self) -> Iterable[str]:
        for precision, floor in MEDIAN_PATCH_FLOORS.items():
            forced = [s.teacher_forced_median for s in self.end_to_end if s.precision == precision]
            if forced and max(forced) < floor:
                yield f"{precision}: teacher-forced, median patch: correlation {max(forced):.7f} is below {floor}"

    def write(self, folder: Path) -> None:
        """Write `validation.json` and `validation.md` into a folder, which is created if it is absent."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "validation.json").write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        (folder / "validation.md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """The report in Markdown: versions, tables, and the verdict."""
        lines = [f"# {Path(self.bundle).name} against {self.checkpoint}", ""]
        lines += [", ".join(f"{name} {version}" for name, version in self.tools.items()), ""]
        for title, header, rows in self.tables():
            lines += [f"## {title}", "", _row(header), _row(["---"] * len(header)), *map(_row, rows), ""]
        failures = self.failures()
        lines += [
            "## Verdict",
            "",
            *([f"- {line}" for line in failures] or ["Every figure is at or above its floor."]),
            "",
        ]
        return "\n".join(lines)

    def tables(self) -> Iterable[tuple[str, list[str], list[list[str]]]]:
        """(title, header, rows) of each table."""
        yield (
            "Step models",
            ["step model", "precision", "arithmetic", "output", "correlation", "max abs error", "SNR dB", "calls"],
            [
                [s.step_model, s.precision, s.arithmetic, name, f"{o.correlation:.7f}", f"{o.max_abs_error:.2e}",
                 f"{o.snr_db:.1f}", str(s.calls)]
                for s in self.steps
                for name, o in s.outputs.items()
            ],
        )  # fmt: skip
        near = [
            [s.step_model, s.precision, n.operation, f"{n.max_abs:.0f}"]
            for s in self.steps
            for n in s.near_fp16_limit
        ]
        if near:
            yield (
                "Operations near fp16's limit (65504)",
                ["step model", "precision", "operation", "max abs"],
                near,
            )
        if self.end_to_end:
            yield (
                "End to end, same noise",
                ["case", "precision", "patches", "latents r", "waveform r", "waveform SNR dB", "forced, worst r",
                 "median r"],
                [
                    [e.case, e.precision, _patches(e), f"{e.free_running_latents.correlation:.7f}",
                     f"{e.waveform.correlation:.6f}", f"{e.waveform.snr_db:.1f}", f"{e.teacher_forced_worst:.7f}",
                     f"{e.teacher_forced_median:.7f}"]
                    for e in self.end_to_end
                ],
            )  # fmt: skip
        if self.sensitivity:
            yield (
                "Upstream against itself, with its patches disturbed",
                ["for", "disturbance", "latents r, lowest", "patch r, lowest"],
                [
                    [s.precision, f"{s.disturbance:g}", f"{s.free_running:.7f}", f"{s.worst_patch:.7f}"]
                    for s in self.sensitivity
                ],
            )


def below_floors(speech: EndToEnd, drift: Sensitivity | None = None) -> list[tuple[str, float, float]]:
    """(figure, its value, its floor) for each figure of a case below its floor, which `drift` lowers if it is given."""
    figures = (
        (
            "free-running latents",
            speech.free_running_latents.correlation,
            FREE_RUNNING_FLOORS,
            "free_running",
        ),
        ("teacher-forced, worst patch", speech.teacher_forced_worst, TEACHER_FORCED_FLOORS, "worst_patch"),
    )
    below = []
    for what, value, floors, disturbed in figures:
        floor = floors.get(speech.precision, -1.0)
        if drift is not None:
            floor = drift.floor(getattr(drift, disturbed), floor)
        if value < floor:
            below.append((what, value, floor))
    return below


def _patches(speech: EndToEnd) -> str:
    same = speech.patches == speech.upstream_patches
    return str(speech.patches) if same else f"{speech.patches} (upstream {speech.upstream_patches})"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
