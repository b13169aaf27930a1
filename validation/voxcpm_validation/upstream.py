"""Upstream's PyTorch code (`voxcpm==2.0.3`) as the reference, with the runtime's audio reading and noise.

Upstream needs only one or two functions of torchaudio and librosa; if they are not installed, stubs replace them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import soundfile
import torch
from safetensors.torch import save_file

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError, MissingExtraError
from voxcpm_constants.generations import GENERATIONS, Traits
from voxcpm_conversion.lora import Lora
from voxcpm_runtime.audio.reading import read_audio, resample
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_runtime.model.flow_matching import NoiseSource

VERSION = "2.0.3"


def import_upstream() -> types.ModuleType:
    """Import `voxcpm`, with stubs for torchaudio and librosa if they are not installed.

    Raises MissingExtraError if voxcpm itself is not installed.
    """
    install_stubs()
    try:
        with _quiet():
            return importlib.import_module("voxcpm")
    except ImportError as error:
        raise MissingExtraError(
            f"validation needs upstream's code ({error}): pip install --no-deps voxcpm=={VERSION}"
        ) from None


def install_stubs() -> None:
    """Make torchaudio and librosa importable, as stubs if they are not installed."""
    # transformers looks for optional packages when it is imported, and must not find the stubs.
    importlib.import_module("transformers")
    missing = {
        name
        for name in ("torchaudio", "librosa")
        if name not in sys.modules and importlib.util.find_spec(name) is None
    }
    for name, stub in _stubs().items():
        if name.partition(".")[0] in missing:
            sys.modules.setdefault(name, stub)


def _stubs() -> dict[str, types.ModuleType]:
    """Stubs of the torchaudio and librosa functions that upstream calls, with the runtime's reading and resampling."""

    def load_torchaudio(path: str) -> tuple[torch.Tensor, int]:
        audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
        return torch.from_numpy(np.ascontiguousarray(audio.T)), int(rate)

    def resampled(audio: torch.Tensor, orig_freq: int, new_freq: int) -> torch.Tensor:
        channels = [resample(np.ascontiguousarray(channel), orig_freq, new_freq) for channel in audio.numpy()]
        return torch.from_numpy(np.stack(channels))

    def load_librosa(path: str, *, sr: int, mono: bool) -> tuple[Floats, int]:
        if not mono:
            raise NotImplementedError("upstream loads its prompts as mono")
        return read_audio(path, sr), sr

    def stub(name: str, **attributes: Any) -> types.ModuleType:
        module = types.ModuleType(name, f"Stands in for {name}.")
        module.__spec__ = ModuleSpec(name, None)  # without one, importlib.util.find_spec raises
        module.__dict__.update(attributes)
        return module

    functional = stub("torchaudio.functional", resample=resampled)
    return {
        "torchaudio": stub("torchaudio", load=load_torchaudio, functional=functional),
        "torchaudio.functional": functional,
        "librosa": stub("librosa", load=load_librosa),
    }


def load_upstream(
    folder: str | Path,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    max_length: int | None = None,
    lora: Lora | None = None,
) -> Any:
    """Load upstream's `VoxCPMModel` or `VoxCPM2Model` from a checkpoint folder, with its `from_local`.

    dtype: arithmetic of everything but the AudioVAE, which is always float32 in upstream; overrides config.json's.
    max_length: positions of upstream's KV caches; overrides config.json's, which may need much memory and time.
    lora: a LoRA that upstream applies to the checkpoint's weights, with its `LoRAConfig` and `load_lora_weights`. One
    in another form is renamed for it.
    Raises CheckpointError if config.json is not VoxCPM's, MissingExtraError if voxcpm is not installed.
    """
    folder = Path(folder).resolve()
    architecture = Architecture.from_file(folder / "config.json")
    upstream = import_upstream()
    model_class = getattr(upstream.core, architecture.traits.upstream_class)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"dtype": dtype, "device": "cpu", "max_length": max_length or architecture.max_length}
    with tempfile.TemporaryDirectory() as view, _quiet():
        # Symlinks to the same files, with another config.json, so that nothing is written into the checkpoint.
        for path in folder.iterdir():
            if path.name != "config.json":
                (Path(view) / path.name).symlink_to(path)
        (Path(view) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        lora_config = None if lora is None else _lora_config(model_class, lora)
        model = model_class.from_local(view, optimize=False, device="cpu", lora_config=lora_config)
        if lora is not None:
            _load_lora(model, lora, Path(view))
        model.text_tokenizer = _own_tokenizer(folder) or model.text_tokenizer
    return model


def _load_lora(model: Any, lora: Lora, folder: Path) -> None:
    """Load a LoRA's weights with upstream's method, which ignores names that it does not know."""
    if lora.is_peft:
        from voxcpm.modules.layers.lora import LoRALinear

        # PEFT wraps any layer, upstream's `LoRAConfig` only some.
        for layer in lora.layers:
            parent, _, name = layer.rpartition(".")
            base = model.get_submodule(layer)
            wrapped = LoRALinear(base, lora.config.r, lora.config.alpha).to(base.weight.dtype)
            setattr(model.get_submodule(parent), name, wrapped.eval())
    weights = lora.weights
    if tensors := lora.renamed_tensors():
        weights = folder / "lora_weights.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights)
    model.load_lora_weights(str(weights))


def _lora_config(model_class: Any, lora: Lora) -> Any:
    """Upstream's `LoRAConfig`, parsed from lora_config.json by upstream's class, not ours; None for PEFT's form."""
    if lora.is_peft:
        return None
    config_class = sys.modules[model_class.__module__].LoRAConfig
    if lora.config_file is not None:
        return config_class(**json.loads(lora.config_file.read_text(encoding="utf-8"))["lora_config"])
    # The defaults of upstream's `VoxCPM(lora_weights_path=…)`, except for the rank: only the weights' own rank loads.
    return config_class(enable_lm=True, enable_dit=True, r=lora.config.r)


def _own_tokenizer(folder: Path) -> Any:
    """tokenizer.json in upstream's wrapper for Chinese characters; None if upstream's own loading is correct.

    Upstream's `LlamaTokenizerFast` uses the file's normalizer with transformers 4. transformers 5 builds Llama's own
    pipeline instead: a tokenizer that lower-cases would then lose capital letters.
    """
    from transformers import PreTrainedTokenizerFast
    from voxcpm.model.utils import mask_multichar_chinese_tokens

    path = folder / "tokenizer.json"
    normalizer = json.loads(path.read_text(encoding="utf-8")).get("normalizer") or {}
    steps = {step.get("type") for step in normalizer.get("normalizers", [normalizer])}
    if steps <= {None, "Prepend", "Replace"}:
        return None
    return mask_multichar_chinese_tokens(PreTrainedTokenizerFast(tokenizer_file=str(path)))


@contextlib.contextmanager
def use_noise(rng: NoiseSource) -> Iterator[None]:
    """Make upstream's solver use the runtime's noise: (1, feat_dim, patch_size) for each patch in turn.

    Upstream's release takes no seed, so this replaces `torch.randn`, in all threads.
    """

    # Kernel autotuning of torch.compile also calls it, with an int.
    def draw(
        size: int | tuple[int, ...], *, device: Any = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        shape = (size,) if isinstance(size, int) else tuple(int(axis) for axis in size)
        noise = np.asarray(rng.standard_normal(shape), dtype=np.float32)
        return torch.from_numpy(noise).to(device=device, dtype=dtype)

    with mock.patch.object(torch, "randn", draw):
        yield


def upstream_generate(
    model: Any,
    text: str,
    *,
    rng: NoiseSource,
    prompt_wav: str | Path | None = None,
    prompt_text: str | None = None,
    reference_wav: str | Path | None = None,
    prompt_cache: dict[str, Any] | None = None,
    min_len: int = 2,
    max_len: int = 2000,
    inference_timesteps: int = 10,
    cfg_value: float = 2.0,
) -> tuple[Floats, Floats]:
    """Speak with upstream's public methods, `build_prompt_cache` and `generate_with_prompt_cache`, without retries.

    prompt_cache: a prompt from upstream's `merge_prompt_cache`, instead of recordings.
    Returns the audio (samples,) at the model's output rate, and the generated latents (patches, patch_size, feat_dim)
    without the prompt's. Upstream generates at most 6 patches for each text token + 10, whatever `max_len` is. After a
    prompt of one patch, VoxCPM 0.5B and 1.5 cut two patches of context from the audio although they put in only one:
    the audio then lacks the first generated patch, but the latents contain it.
    Raises InputError for a reference voice on VoxCPM 0.5B and 1.5.
    """
    cache = prompt_cache or build_prompt_cache(model, prompt_wav, prompt_text, reference_wav)
    with use_noise(rng), _quiet():
        audio, _, features = model.generate_with_prompt_cache(
            text,
            cache,
            min_len=min_len,
            max_len=max_len,
            inference_timesteps=inference_timesteps,
            cfg_value=cfg_value,
        )
    # Prompt patches at the start of the features; VoxCPM2 removes them itself.
    traits, context = traits_of(model), 0
    if cache is not None and traits.context_counts_as_speech:
        context = min(traits.decoder_context_patches, int(cache["audio_feat"].size(0)))
    latents = features.to("cpu", torch.float32).numpy()[context:]
    samples = audio.to("cpu", torch.float32).numpy().reshape(-1)
    return samples, latents.reshape(-1, model.patch_size, model.feat_dim)


def build_prompt_cache(
    model: Any,
    prompt_wav: str | Path | None = None,
    prompt_text: str | None = None,
    reference_wav: str | Path | None = None,
) -> dict[str, Any] | None:
    """Upstream's cache of a prompt and a reference, with the runtime's audio reading; None without either.

    Raises InputError for a reference voice on VoxCPM 0.5B and 1.5.
    """
    sources: dict[str, str] = {}
    if prompt_wav is not None:
        sources |= {"prompt_wav_path": str(prompt_wav), "prompt_text": prompt_text or ""}
    if reference_wav is not None:
        sources["reference_wav_path"] = str(reference_wav)
    if not sources:
        return None
    if reference_wav is not None and not traits_of(model).takes_reference:
        raise InputError(
            "a reference voice needs VoxCPM2; VoxCPM 0.5B and 1.5 take a prompt with its transcript"
        )
    # Even if torchaudio and librosa are installed: their resampling filters differ from the runtime's.
    stubs, modules = _stubs(), sys.modules
    with (
        mock.patch.object(modules["voxcpm.model.voxcpm"], "torchaudio", stubs["torchaudio"]),
        mock.patch.object(modules["voxcpm.model.voxcpm2"], "librosa", stubs["librosa"]),
        _quiet(),
    ):
        return model.build_prompt_cache(**sources)


def traits_of(model: Any) -> Traits:
    """The traits of the generation of upstream's model."""
    return next(t for t in GENERATIONS.values() if t.upstream_class == type(model).__name__)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide upstream's stderr output, such as progress bars, and its libraries' warnings."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
