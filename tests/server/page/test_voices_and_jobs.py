"""Voices and jobs on the page, in a real browser."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect

pytestmark = pytest.mark.browser
TEXT = "Hello there."


# It begins somewhere in the sentence, so what it says may be too long.
@pytest.mark.filterwarnings("ignore::voxcpm_runtime.SuspiciousWarning")
def test_voice_is_recorded_previewed_used_and_deleted(
    visit: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    running = serve(preview_text="Hi.")
    page = visit(running.url).page
    page.click("#new-voice")
    page.fill("#voice-name", "ada")
    page.click("#record")
    expect(page.locator("#record")).to_contain_text("Stop (2 s)", timeout=20_000)
    page.click("#record")
    expect(page.locator("#recorded")).to_be_visible()
    page.fill("#transcript", "Hello there, this is a test of the server.")
    # Nothing is sent without consent.
    page.click("#voice-form [type=submit]")
    assert not page.evaluate("document.getElementById('consent').validity.valid")
    page.check("#consent")
    page.click("#voice-form [type=submit]")
    expect(page.locator("#status")).to_contain_text("Voice ada saved.", timeout=60_000)
    expect(page.locator("#voice")).to_have_value("ada")
    expect(page.locator("#voice-hint")).to_contain_text("with the speaker’s consent")
    assert '"voice":"ada"' in page.inner_text("#curl")
    voice = running.service.voices.shown("ada", {})
    assert (
        1.5 < voice.prompt_patches * running.service.bundles.default.tts.bundle.architecture.patch_seconds < 4
    )

    page.click("#preview")
    expect(page.locator("#preview")).to_contain_text("Stop", timeout=30_000)

    page.click("#delete-voice")
    page.click("#no")
    assert (tmp_path / "voices" / "ada.voice").exists()
    page.click("#delete-voice")
    page.click("#yes")
    expect(page.locator("#status")).to_contain_text("Voice ada deleted.")
    expect(page.locator("#voice")).to_have_value("default")
    assert not (tmp_path / "voices" / "ada.voice").exists()


def test_voice_is_created_from_a_file(
    visit: Callable[..., Any], serve: Callable[..., Any], spoken: Any, tmp_path: Path
) -> None:
    running = serve()
    page = visit(running.url).page
    soundfile.write(tmp_path / "ben.flac", spoken.audio, spoken.sample_rate)
    page.click("#new-voice")
    page.fill("#voice-name", "ben")
    page.set_input_files("#voice-file", tmp_path / "ben.flac")
    page.fill("#transcript", "Hello there, this is a test of the server.")
    page.check("#consent")
    page.click("#voice-form [type=submit]")
    expect(page.locator("#voice")).to_have_value("ben", timeout=60_000)


def test_jobs_are_submitted_polled_saved_and_deleted(
    visit: Callable[..., Any], server: Any, said: np.ndarray
) -> None:
    page = visit(server.url).page
    page.fill("#text", TEXT)
    page.fill("#seed", "7")
    page.click("#submit-job")
    download = page.locator("#job-list").get_by_role("button", name="Download")
    expect(download).to_be_enabled(timeout=60_000)
    expect(page.locator("#job-list")).to_contain_text(f"{len(said) / 24000:.1f} s of speech")
    with page.expect_download() as saved:
        download.click()
    content = Path(saved.value.path()).read_bytes()
    assert saved.value.suggested_filename.endswith(".wav")
    np.testing.assert_array_equal(soundfile.read(io.BytesIO(content), dtype="int16")[0], said)

    page.locator("#job-list").get_by_role("button", name="Delete").click()
    page.click("#yes")
    expect(page.locator("#job-list li")).to_have_count(0)
