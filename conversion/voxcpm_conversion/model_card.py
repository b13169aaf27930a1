"""The bundle's README.md: a model card for a hub, generated from the manifest alone.

Validation results are between two markers, so that they can be filled in later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from huggingface_hub import ModelCardData

from voxcpm_constants.generations import GENERATIONS
from voxcpm_constants.manifest import (
    CONSTANTS_FOLDER,
    MODEL_CARD_FILE,
    TOKENIZER_FOLDER,
    Manifest,
)
from voxcpm_constants.targets import CORE_AI, SYSTEMS
from voxcpm_constants.user_folders import is_hub_id

_OPENING, _CLOSING = "<!-- validation -->", "<!-- /validation -->"
_NOT_VALIDATED = "Not validated yet: `voxcpm-coreml validate` writes its figures here."

_CARD = """\
---
{front_matter}
---

# {name} for {framework}

Text-to-speech: a VoxCPM checkpoint, converted by voxcpm-coreml to a *bundle* of {count} {framework} models.

{facts}
## Sizes

In MB. A device needs one precision, the constants and the tokenizer ({shared} MB).

{sizes}
## Usage

`BUNDLE` is this folder, or its hub id (`organisation/name`). From Python, with the package `voxcpm-coreml` and without
PyTorch:

```python
from voxcpm_runtime import VoxCPM

tts = VoxCPM.from_bundle("BUNDLE")
wav = tts.generate("Hello.", seed=7)  # float32 samples at tts.sample_rate
```

From the command line:

    voxcpm-coreml generate BUNDLE --text "Hello." -o hello.wav
    voxcpm-coreml inspect BUNDLE

{in_an_app}
{figures}{measured}## Agreement with the checkpoint

{validation}

## Limitations

{limits}
"""

_MEASURED = """\
## Measured at conversion

Quantised models on a recorded sentence, against this checkpoint in float32: the figure nearest to its floor, signal to
error in dB or a share. One sentence, each package alone: nobody has listened to them.

{table}
"""
_MEASURED_HEADER = ("precision", "package", "with all weights quantised", "kept", "size")

_IN_AN_APP = """\
In a Swift app, with the package in the folder `swift` of voxcpm-coreml:

```swift
let tts = VoxCPM(.folder(bundle), Configuration(predictor: PREDICTOR(), precision: .PRECISION))
let speech = try await tts.speak("Hello.")
```

`docs/bundle.md` there describes the loop for other languages.
"""


def write_model_card(bundle: Path, manifest: Manifest, measured: Sequence[Sequence[str]] = ()) -> None:
    """Write README.md into the bundle's folder, without validation results."""
    (bundle / MODEL_CARD_FILE).write_text(model_card(manifest, measured), encoding="utf-8")


def model_card(manifest: Manifest, measured: Sequence[Sequence[str]] = ()) -> str:
    """The card of a bundle in Markdown, with front matter for a hub. measured: rows of the quantised packages."""
    framework = "Core AI" if manifest.target == CORE_AI else "Core ML"
    speech, source = manifest.speech, manifest.source
    front_matter = ModelCardData(
        license=source.licence.lower() or None,
        base_model=source.checkpoint if is_hub_id(source.checkpoint) else None,
        library_name=framework.lower().replace(" ", ""),
        pipeline_tag="text-to-speech",
        language=None if speech is None else speech.language,
        tags=[framework.lower().replace(" ", ""), "voxcpm", *manifest.precisions],
    )
    figures = "" if speech is None else _table(("", ""), speech.figures.items())
    name = source.checkpoint.rpartition("/")[2]
    return _CARD.format(
        front_matter=front_matter.to_yaml(),
        name=name if source.lora is None else f"{name} with {source.lora.name}",
        framework=framework,
        count=len(manifest.packages),
        facts=_table(("", ""), _facts(manifest)),
        shared=_megabytes(manifest, CONSTANTS_FOLDER, TOKENIZER_FOLDER),
        sizes=_table(("package", *manifest.precisions), _sizes(manifest)),
        in_an_app=_IN_AN_APP.replace("PREDICTOR", f"{framework.replace(' ', '')}Predictor").replace(
            "PRECISION", manifest.precisions[0]
        ),
        figures=f"## Figures of the checkpoint\n\n{figures}\n" if speech and speech.figures else "",
        measured=_MEASURED.format(table=_table(_MEASURED_HEADER, measured)) if measured else "",
        validation=f"{_OPENING}\n{_NOT_VALIDATED}\n{_CLOSING}",
        limits="\n".join(f"- {line}" for line in _limits(manifest, measured=bool(measured))),
    )


def with_validation(card: str, section: str) -> str | None:
    """The card with `section` (Markdown) as its validation results; None if the card has no markers."""
    before, opening, rest = card.partition(_OPENING)
    _, closing, after = rest.partition(_CLOSING)
    return f"{before}{opening}\n{section.strip()}\n{closing}{after}" if opening and closing else None


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(table(header, rows))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, followed by an empty one."""
    lines = (header, ["---"] * len(header), *rows)
    return [*(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines), ""]


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    a, source, sizes = manifest.architecture, manifest.source, manifest.sizes
    yield (
        "checkpoint",
        source.checkpoint if source.revision is None else f"{source.checkpoint} at {source.revision}",
    )
    if source.lora is not None:
        yield "LoRA", f"{source.lora.name} (r {source.lora.r}, alpha {source.lora.alpha}), merged"
    yield "licence", source.licence or "not named by the checkpoint; ask its authors before you publish this"
    yield "generation", a.generation
    yield "modes", ", ".join(a.traits.modes)
    yield "precisions", ", ".join(manifest.precisions) + "; AudioVAE in fp32" * manifest.audio_vae_fp32
    yield "runs on", SYSTEMS[manifest.target]
    yield "sample rates", f"recordings {a.input_sample_rate} Hz, speech {a.output_sample_rate} Hz"
    yield "one patch", f"{a.patch_seconds * 1000:g} ms of speech"
    yield "positions", f"{sizes.kv_length}: tokens and patches of one utterance, recordings included"
    if speech := manifest.speech:
        yield (
            "reliable utterances",
            f"up to {speech.longest_seconds:g} s or {speech.longest_tokens} tokens of text",
        )
    yield "made with", ", ".join(f"{name} {version}" for name, version in manifest.tools.items())


def _sizes(manifest: Manifest) -> Iterator[list[str]]:
    for package in manifest.packages:
        folders = (manifest.package_path(precision, package.name) for precision in manifest.precisions)
        yield [package.name, *(_megabytes(manifest, str(folder)) for folder in folders)]
    yield ["total", *(_megabytes(manifest, precision) for precision in manifest.precisions)]


def _megabytes(manifest: Manifest, *folders: str) -> str:
    prefixes = tuple(f"{folder}/" for folder in folders)
    return f"{sum(r.bytes for path, r in manifest.files.items() if path.startswith(prefixes)) / 1e6:.1f}"


def _limits(manifest: Manifest, *, measured: bool) -> Iterator[str]:
    a, sizes = manifest.architecture, manifest.sizes
    every = dict.fromkeys(mode for traits in GENERATIONS.values() for mode in traits.modes)
    missing = [mode for mode in every if mode not in a.traits.modes]
    if missing:
        yield f"Not supported by this generation: {', '.join(missing)}."
    seconds = (
        f"{sizes.kv_length * a.patch_seconds:.0f} s of speech and recordings, less a patch for each token"
    )
    yield f"An utterance has at most {sizes.kv_length} positions: {seconds}. Split longer texts into segments."
    lossy = [precision for precision in manifest.precisions if precision.startswith("int")]
    if lossy:
        yield f"The weights of {' and '.join(lossy)} are compressed with loss; compare by ear before you ship them."
    if lossy and not measured:
        yield (
            f"Not measured at conversion: {' and '.join(lossy)}. "
            "`convert` without `--no-measure` does, for macOS 14 and 15."
        )
    yield "Recordings are not denoised: upstream's denoiser is not part of a bundle."
