"""The figures of a validation in the bundle's model card."""

from __future__ import annotations

from pathlib import Path

from voxcpm_constants.manifest import MODEL_CARD_FILE
from voxcpm_conversion.model_card import table, with_validation
from voxcpm_runtime.storage.whole_file import whole_file
from voxcpm_validation.report import Report


def add_to_model_card(bundle: Path, report: Report) -> bool:
    """Enter the report's correlations into the README.md of a bundle; what stood there before is replaced.

    Returns False, and changes nothing, if the bundle has no card of the conversion's form, or if the card is a link,
    as in a hub's cache. Raises OSError if the card cannot be written.
    """
    card = bundle / MODEL_CARD_FILE
    if card.is_symlink() or not card.is_file():
        return False
    text = with_validation(card.read_text(encoding="utf-8"), card_section(report))
    if text is None:
        return False
    with whole_file(card) as file:
        file.write(text.encode())
    return True


def card_section(report: Report) -> str:
    """The correlations of a report in Markdown: each step model by precision, then whole utterances."""
    figures = {(s.step_model, s.precision): s.correlation for s in report.steps if s.arithmetic != "faithful"}
    models = list(dict.fromkeys(model for model, _ in figures))
    precisions = list(dict.fromkeys(precision for _, precision in figures))
    runtime = "Core AI" if "core-ai" in {s.arithmetic for s in report.steps} else "ONNX Runtime"
    versions = ", ".join(f"{name} {version}" for name, version in report.tools.items())
    return "\n".join(
        [
            f"Correlation with upstream's PyTorch code, by `voxcpm-coreml validate` ({versions}). The step models ran",
            f"on {runtime}, with the inputs and the state that upstream had:",
            "",
            *table(
                ("step model", *precisions),
                ([model, *(f"{figures[model, p]:.6f}" for p in precisions)] for model in models),
            ),
            "Whole utterances from the same noise, where every patch builds on the patches before it:",
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
