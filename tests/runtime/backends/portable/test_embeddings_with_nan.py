"""An embedding table with NaN or infinities is a one-line error, even with a correct digest."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from edited_manifest import edit_manifest
from voxcpm_constants.manifest import record_file
from voxcpm_runtime.commands.cli import main

EMBEDDINGS = "constants/embed_tokens.npy"


def test_non_finite_embeddings_are_a_one_line_error(
    tiny_bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle, output = tmp_path / "bundle", tmp_path / "hello.wav"
    shutil.copytree(tiny_bundle, bundle)
    table = np.load(bundle / EMBEDDINGS)
    table[:] = np.nan
    np.save(bundle / EMBEDDINGS, table)
    record = record_file(bundle / EMBEDDINGS).model_dump()
    edit_manifest(bundle, lambda document: document["files"].update({EMBEDDINGS: record}))

    code = main(["generate", str(bundle), "--precision", "int8", "--text", "the you and", "-o", str(output)])

    error = capfd.readouterr().err
    assert (code, error.count("\n")) == (2, 1), error
    assert f"{EMBEDDINGS}: expected finite numbers, found infinities or NaN in the row of a token" in error
    assert not output.exists()
