"""The oracle: upstream's own PyTorch code (`voxcpm==2.0.3`), on the CPU, quiet, with our audio reading and noise.

Upstream imports packages of which speech needs a function or two: where torchaudio or librosa is not installed,
a stub stands in.
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
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal, Protocol
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError, MissingExtraError
from voxcpm_conversion.lora import Lora
from voxcpm_runtime.audio.files import read_audio, resample

VERSION = "2.0.3"

# Default of `streaming_prefix_len` in VoxCPM 0.5B and 1.5: patches that the decoder sees at once.
_STREAMING_PREFIX = 3

FloatArray = npt.NDArray[np.float32]


class NoiseSource(Protocol):
    """numpy's `Generator`, or recorded noise."""

    def standard_normal(self, size: tuple[int, ...]) -> npt.NDArray[np.floating]: ...


def import_upstream() -> types.ModuleType:
    """Import `voxcpm`, with stubs for torchaudio and librosa where they are absent.

    Raises MissingExtraError if voxcpm itself is not installed.
    """
    # transformers looks for optional packages when it is imported and must not find the stubs.
    importlib.import_module("transformers")
    for name, make in _STUBS.items():
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules.update(make())
    try:
        with _quiet():
            return importlib.import_module("voxcpm")
    except ImportError as error:
        raise MissingExtraError(
            f"validation needs upstream's code ({error}): pip install --no-deps voxcpm=={VERSION}"
        ) from None


def _stub(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name, f"Stands in for {name}, which is not installed.")
    module.__spec__ = ModuleSpec(name, None)  # without one, importlib.util.find_spec raises
    module.__dict__.update(attributes)
    return module


def _torchaudio() -> dict[str, types.ModuleType]:
    functional = _stub("torchaudio.functional", resample=_resample)
    load: Callable[[str], tuple[torch.Tensor, int]] = _load_torchaudio
    return {
        "torchaudio": _stub("torchaudio", load=load, functional=functional),
        "torchaudio.functional": functional,
    }


def _librosa() -> dict[str, types.ModuleType]:
    return {"librosa": _stub("librosa", load=_load_librosa)}


_STUBS: dict[str, Callable[[], dict[str, types.ModuleType]]] = {
    "torchaudio": _torchaudio,
    "librosa": _librosa,
}


def _load_torchaudio(path: str) -> tuple[torch.Tensor, int]:
    """As torchaudio.load: (channels, samples) in [-1, 1], and the sample rate in Hz."""
    import soundfile

    audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return torch.from_numpy(np.ascontiguousarray(audio.T)), int(rate)


def _resample(audio: torch.Tensor, orig_freq: int, new_freq: int) -> torch.Tensor:
    """As torchaudio.functional.resample, of (channels, samples), by the runtime's filter."""
    channels = [resample(np.ascontiguousarray(channel), orig_freq, new_freq) for channel in audio.numpy()]
    return torch.from_numpy(np.stack(channels))


def _load_librosa(path: str, *, sr: int, mono: bool) -> tuple[FloatArray, int]:
    """As librosa.load with mono=True, the only way upstream calls it: (samples,) at `sr` Hz."""
    if not mono:
        raise NotImplementedError("upstream loads its prompts as mono")
    return read_audio(path, sr), sr


def load_upstream(
    folder: str | Path,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    max_length: int | None = None,
    lora: Lora | None = None,
) -> Any:
    """Upstream's `VoxCPMModel` or `VoxCPM2Model` of a checkpoint folder, through its `from_local`.

    dtype: arithmetic of everything but the AudioVAE, which upstream keeps in float32; config.json's is overridden.
    max_length: positions of upstream's KV caches, where config.json's would only cost memory and time.
    lora: what upstream runs beside the checkpoint's weights, by its own `LoRAConfig` and `load_lora_weights`.
    Raises CheckpointError if config.json is not VoxCPM's, MissingExtraError without the packages.
    """
    folder = Path(folder).resolve()
    architecture = Architecture.from_file(folder / "config.json")
    upstream = import_upstream()
    model_class = getattr(upstream.core, architecture.traits.upstream_class)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"dtype": dtype, "device": "cpu", "max_length": max_length or architecture.max_length}
    with tempfile.TemporaryDirectory() as view, _quiet():
        # The same files beside another config.json: nothing is written into the checkpoint.
        for path in folder.iterdir():
            if path.name != "config.json":
                (Path(view) / path.name).symlink_to(path)
        (Path(view) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        lora_config = None if lora is None else _lora_config(model_class, lora)
        model = model_class.from_local(view, optimize=False, device="cpu", lora_config=lora_config)
        if lora is not None:
            model.load_lora_weights(str(lora.weights))
        if _has_own_normalizer(view):
            # Upstream's `LlamaTokenizerFast` keeps it with transformers 4; 5 builds Llama's pipeline instead, and
            # a checkpoint that lower-cases would lose its capital letters.
            model.text_tokenizer = _tokenizer_of_file(view)
    return model


def _lora_config(model_class: Any, lora: Lora) -> Any:
    """Upstream's `LoRAConfig`, read from lora_config.json by upstream's class and not by ours."""
    config_class = sys.modules[model_class.__module__].LoRAConfig
    if lora.config_file is not None:
        return config_class(**json.loads(lora.config_file.read_text(encoding="utf-8"))["lora_config"])
    # As upstream's `VoxCPM(lora_weights_path=…)`, but for the rank: with any other one the weights would not load.
    return config_class(enable_lm=True, enable_dit=True, r=lora.config.r)


def _has_own_normalizer(folder: str) -> bool:
    """Whether tokenizer.json does more than Llama's word prefix before BPE, such as lower-casing."""
    document = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
    normalizer = document.get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    return any(step.get("type") not in (None, "Prepend", "Replace") for step in steps)


def _tokenizer_of_file(folder: str) -> Any:
    """Upstream's character wrapper around tokenizer.json as it stands."""
    from transformers import PreTrainedTokenizerFast
    from voxcpm.model.utils import mask_multichar_chinese_tokens

    path = str(Path(folder) / "tokenizer.json")
    return mask_multichar_chinese_tokens(PreTrainedTokenizerFast(tokenizer_file=path))


@contextlib.contextmanager
def recorded_noise(rng: NoiseSource) -> Iterator[None]:
    """Give upstream's solver the runtime's noise: one draw a patch of shape (1, feat_dim, patch_size), in its order.

    While it lasts `torch.randn` is replaced, in all threads: upstream's release takes no seed.
    """

    def draw(
        size: tuple[int, ...], *, device: Any = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        noise = np.asarray(rng.standard_normal(tuple(int(axis) for axis in size)), dtype=np.float32)
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
    min_len: int = 2,
    max_len: int = 2000,
    inference_timesteps: int = 10,
    cfg_value: float = 2.0,
) -> tuple[FloatArray, FloatArray]:
    """Speak with upstream's public path, `build_prompt_cache` and `generate_with_prompt_cache`, without retries.

    Returns the audio (samples,) at the model's output rate, and the generated latents (patches, patch_size,
    feat_dim) without the prompt's. Upstream stops at 6 patches a text token + 10 whatever `max_len` says. After a
    prompt of one patch, VoxCPM 0.5B and 1.5 cut two patches of context from the audio though they put only one
    in: there the audio lacks the first generated patch, and the latents have it.
    """
    cache = _prompt_cache(model, prompt_wav, prompt_text, reference_wav)
    with recorded_noise(rng), _quiet():
        audio, _, features = model.generate_with_prompt_cache(
            text,
            cache,
            min_len=min_len,
            max_len=max_len,
            inference_timesteps=inference_timesteps,
            cfg_value=cfg_value,
        )
    latents = features.to(torch.float32).numpy()[_context_patches(model, cache) :]
    return audio.to(torch.float32).numpy().reshape(-1), latents.reshape(-1, model.patch_size, model.feat_dim)


def _prompt_cache(
    model: Any, prompt_wav: str | Path | None, prompt_text: str | None, reference_wav: str | Path | None
) -> dict[str, Any] | None:
    sources: dict[str, str] = {}
    if prompt_wav is not None:
        sources |= {"prompt_wav_path": str(prompt_wav), "prompt_text": prompt_text or ""}
    if reference_wav is not None:
        sources["reference_wav_path"] = str(reference_wav)
    if not sources:
        return None
    if reference_wav is not None and not is_second_generation(model):
        raise InputError(
            "a reference voice needs VoxCPM2; VoxCPM 0.5B and 1.5 take a prompt with its transcript"
        )
    with _our_audio(), _quiet():
        cache: dict[str, Any] = model.build_prompt_cache(**sources)
    return cache


def _context_patches(model: Any, cache: dict[str, Any] | None) -> int:
    """Prompt patches at the front of the features that upstream returns: VoxCPM2 cuts them off by itself."""
    if cache is None or is_second_generation(model):
        return 0
    return min(_STREAMING_PREFIX - 1, int(cache["audio_feat"].size(0)))


def is_second_generation(model: Any) -> bool:
    return bool(type(model).__name__ == "VoxCPM2Model")


@contextlib.contextmanager
def _our_audio() -> Iterator[None]:
    """Read prompts as the runtime does even where torchaudio and librosa, whose filters differ, are installed."""
    with contextlib.ExitStack() as patches:
        for module, name in (("voxcpm.model.voxcpm", "torchaudio"), ("voxcpm.model.voxcpm2", "librosa")):
            patches.enter_context(mock.patch.object(sys.modules[module], name, _STUBS[name]()[name]))
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Upstream prints what it loads and draws a progress bar on stderr; its libraries warn about themselves."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
