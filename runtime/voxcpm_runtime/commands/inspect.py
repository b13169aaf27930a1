"""`inspect`: show a bundle's properties and the tensors of its step models."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from voxcpm_constants.json_files import printed_json
from voxcpm_constants.manifest import Manifest, check_files
from voxcpm_constants.targets import SYSTEMS
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.bundle.opening import choose_precision, locate_bundle
from voxcpm_runtime.commands.shared_arguments import BundleArgument, Json


def inspect(
    bundle: BundleArgument = None,
    as_json: Json = False,
    verify: Annotated[bool, typer.Option("--verify", help="Verify the checksum of every file.")] = False,
) -> None:
    """Show a bundle: source, modes, precisions, and inputs, outputs and sizes of its step models."""
    folder = locate_bundle(bundle)
    manifest = Manifest.read(folder)
    files = manifest.files
    if bundle is not None and folder != user_path(bundle):
        # Only one precision is downloaded from the hub.
        files = manifest.files_of(choose_precision(folder, manifest, None))
    check_files(folder, files, digests=verify)
    facts = _facts(manifest)
    if as_json:
        typer.echo(printed_json(facts))
        return
    for name, text in _lines(manifest, facts).items():
        if text:
            typer.echo(f"{name:<12}{text}")
    for name, model in facts["step_models"].items():
        sizes = ", ".join(f"{precision} {_megabytes(size)}" for precision, size in model["bytes"].items())
        typer.echo(f"\n{name}: {sizes}")
        for kind, word in (("inputs", "in"), ("outputs", "out")):
            for tensor, (*shape, dtype) in model[kind].items():
                typer.echo(f"  {word:<6}{tensor:<14}{_shape(shape):<18}{dtype}")
        if state := list(model.get("state", {}).values()):
            shapes = dict.fromkeys(_shape(shape) for *shape, _ in (state[0], state[-1]))
            typer.echo(f"  state {len(state)} tensors of {' … '.join(shapes)}, {state[0][-1]}")
        if len(model["functions"]) > 1:
            typer.echo(f"  functions {', '.join(model['functions'])}")
    typer.echo("\nAn axis a|b takes either length; compute is float16, in fp32 packages float32.")


def _facts(manifest: Manifest) -> dict[str, Any]:
    """The JSON: sizes of files in bytes, rates in Hz."""
    a = manifest.architecture

    def size(folder: object) -> int:
        return sum(record.bytes for path, record in manifest.files.items() if path.startswith(f"{folder}/"))

    step_models: dict[str, Any] = {}
    for name, model in manifest.step_models.items():
        kinds = {"inputs": model.inputs, "outputs": model.outputs, "state": model.state}
        step_models[name] = {
            **{kind: {t.name: [*t.shape, t.dtype] for t in tensors} for kind, tensors in kinds.items() if tensors},
            "functions": list(manifest.form(model).functions),
            # Without the compiled form (.mlmodelc).
            "bytes": {
                precision: sum(size(manifest.package_path(precision, p.name)) for p in manifest.parts(name))
                for precision in manifest.precisions
            },
        }  # fmt: skip
    return {
        "architecture": a.generation,
        "modes": a.traits.modes,
        "source": manifest.source.model_dump(),
        "speech": manifest.speech and manifest.speech.model_dump(),
        "schema_version": manifest.schema_version,
        "target": manifest.target,
        "input_sample_rate": a.input_sample_rate,
        "output_sample_rate": a.output_sample_rate,
        "patch_seconds": a.patch_seconds,
        "sizes": manifest.sizes.model_dump(),
        "precisions": {precision: size(precision) for precision in manifest.precisions},
        "audio_vae_fp32": manifest.audio_vae_fp32,
        "constants": size("constants"),
        "tools": manifest.tools,
        "step_models": step_models,
    }


def _lines(manifest: Manifest, facts: dict[str, Any]) -> dict[str, Any]:
    source, sizes, speech, lora = manifest.source, manifest.sizes, manifest.speech, manifest.source.lora
    return {
        facts["architecture"]: f"from {source.checkpoint} ({source.licence or 'no licence named'})",
        "revision": source.revision,
        "sha256": f"{source.sha256[:16]}…",
        "lora": lora and f"{lora.name}, rank {lora.r}, alpha {lora.alpha}: {', '.join(lora.modules)}",
        "modes": ", ".join(facts["modes"]),
        "target": SYSTEMS[manifest.target],
        "audio": f"{facts['input_sample_rate']} Hz in, {facts['output_sample_rate']} Hz out",
        "patch": f"{facts['patch_seconds'] * 1000:.0f} ms",
        "utterances": speech
        and f"up to {speech.longest_seconds:g} s or {speech.longest_tokens} tokens; expected: "
        f"{speech.seconds_beside:g} s and {speech.seconds_per_letter * 1000:g} ms a letter",
        "positions": f"{sizes.kv_length}, in chunks of {', '.join(map(str, sizes.prefill_chunks))}",
        "precisions": ", ".join(f"{name} {_megabytes(n)}" for name, n in facts["precisions"].items()),
        "AudioVAE": manifest.audio_vae_fp32 and "computes in float32 in every precision",
        "constants": _megabytes(facts["constants"]),
        "tools": ", ".join(f"{name} {version}" for name, version in manifest.tools.items()),
    }


def _shape(shape: list[int | list[int] | tuple[int, ...]]) -> str:
    return "×".join(str(axis) if isinstance(axis, int) else "|".join(map(str, axis)) for axis in shape)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
