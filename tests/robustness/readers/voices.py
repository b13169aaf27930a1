"""The reader of a saved voice."""

import random
from pathlib import Path

import numpy as np

from robustness.mutations import damaged, mutated_bytes, mutated_json
from robustness.reader import Reader


def _changed(content: bytes, chance: random.Random) -> bytes:
    """Mutated tensors with a valid digest, or mutated bytes, mostly of the header."""
    if chance.random() < 0.5:
        return _resealed(content, chance)
    length = 8 + int.from_bytes(content[:8], "little") if chance.random() < 0.8 else len(content)
    return mutated_bytes(content[:length], chance) + content[length:]


def _resealed(content: bytes, chance: random.Random) -> bytes:
    """A tensor file with a changed element, shape, dtype, name or metadata and a valid digest."""
    from voxcpm_constants.tensor_files import dump_tensors, load_tensors

    tensors, metadata = load_tensors(content)
    name = chance.choice(sorted(tensors))
    tensor = tensors[name]
    match chance.randrange(6 if metadata else 5):
        case 0:
            flipped = damaged(tensor.tobytes(), "flip", chance)
            tensors[name] = np.frombuffer(flipped, tensor.dtype).reshape(tensor.shape)
        case 1 if tensor.ndim:
            tensors[name] = tensor[: chance.randrange(len(tensor) + 1)]
        case 1 | 2:
            tensors[name] = tensor.astype(chance.choice(["f8", "f2", "i4", "u1"]))
        case 3:
            tensors[chance.choice(["", "x", "../x", *tensors])] = tensors.pop(name)
        case 4:
            tensors[name] = tensor.reshape(-1, 1)
        case _:
            key = chance.choice(sorted(metadata))
            metadata[key] = mutated_json(metadata[key].encode(), chance).decode(errors="replace")
    return dump_tensors(tensors, metadata)


def voice(bundle: Path, folder: Path) -> Reader:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime import Voice
    from voxcpm_runtime.voices.voice import Turn, VoiceHeader, latent_space

    a = Manifest.read(bundle).architecture
    header = VoiceHeader(
        name="ada", generation=a.generation, latent_space=latent_space(a), sample_rate=a.input_sample_rate,
        turns=(Turn(text="so", patches=3),),
    )  # fmt: skip
    path = folder / "a.voice"
    Voice(header, np.ones((3, a.patch_size, a.feat_dim), np.float32)).save(path)

    def read(content: bytes) -> None:
        (folder / "b.voice").write_bytes(content)
        Voice.load(folder / "b.voice").check(a)

    return Reader((path.read_bytes(),), read, _changed)
