"""Voices, jobs and written text on the page, in a real browser."""

import io
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect

pytestmark = pytest.mark.page
TEXT = "Hello there."


def test_voice_is_recorded_previewed_used_and_deleted(visit, serve, tmp_path):
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


def test_voices_are_listed_once_with_how_they_sound(visit, serve, tmp_path):
    (tmp_path / "aliases.json").write_text('{"nova": "heart"}')
    page = visit(serve(voice_aliases=tmp_path / "aliases.json").url).page
    expect(page.locator("#voice optgroup")).to_have_count(2)
    groups = page.eval_on_selector_all(
        "#voice optgroup",
        "(all) => all.map((one) => [one.label, [...one.children].map((voice) => voice.textContent)])",
    )
    (built_in, voices), (other, aliases) = groups
    assert (built_in, other, aliases) == ("Built in", "Other names", ["nova"])
    assert len(voices) == 13
    assert "michael – American man, low and slow" in voices
    assert all(voice.split(" – ")[1].startswith(("American ", "British ")) for voice in voices)


@pytest.mark.parametrize("ending", ["flac", "m4a", "mov"])
def test_voice_is_created_from_a_file(visit, serve, spoken, tmp_path, ending):
    running = serve()
    page = visit(running.url).page
    if ending == "flac":
        soundfile.write(tmp_path / "ben.flac", spoken.audio, spoken.sample_rate)
    else:
        with av.open(tmp_path / f"ben.{ending}", "w") as file:
            stream = file.add_stream("aac", rate=spoken.sample_rate, layout="mono")
            frame = av.AudioFrame.from_ndarray(spoken.audio[None], "fltp", "mono")
            frame.sample_rate = spoken.sample_rate
            file.mux([*stream.encode(frame), *stream.encode(None)])
    # A file chooser offers only these.
    assert {f".{ending}", "audio/*"} <= set(page.get_attribute("#voice-file", "accept").split(","))
    page.click("#new-voice")
    page.fill("#voice-name", "ben")
    page.set_input_files("#voice-file", tmp_path / f"ben.{ending}")
    page.fill("#transcript", "Hello there, this is a test of the server.")
    page.check("#consent")
    page.click("#voice-form [type=submit]")
    expect(page.locator("#voice")).to_have_value("ben", timeout=60_000)


def test_jobs_are_submitted_polled_saved_and_deleted(visit, server, said):
    page = visit(server.url).page
    page.fill("#text", TEXT)
    page.fill("#seed", "7")
    page.click("#submit-job")
    download = page.locator("#job-list").get_by_role("button", name="Download")
    expect(download).to_be_enabled(timeout=60_000)
    expect(page.locator("#job-list")).to_contain_text(f"{len(said) / 24000:.1f} s of speech")
    expect(page.locator("#job-list li p").first).to_have_text(TEXT)
    expect(page.locator("#job-list")).to_contain_text(f" · default · WAV · {len(TEXT)} characters · ")
    expect(page.locator("#job-list audio")).to_be_hidden()
    page.locator("#job-list").get_by_role("button", name="Play").click()
    player = page.locator("#job-list audio")
    expect(player).to_be_visible()
    expect(player).to_have_js_property("duration", len(said) / 24000)
    with page.expect_download() as saved:
        download.click()
    content = Path(saved.value.path()).read_bytes()
    assert saved.value.suggested_filename.endswith(".wav")
    np.testing.assert_array_equal(soundfile.read(io.BytesIO(content), dtype="int16")[0], said)
    page.locator("#job-list").get_by_role("button", name="Delete").click()
    page.click("#yes")
    expect(page.locator("#job-list li")).to_have_count(0)


def test_typed_text_survives_a_reload(visit, server):
    page = visit(server.url).page
    expect(page.locator("#voice option")).not_to_have_count(1)
    for typed in ("A line that\ntook an hour.", ""):
        page.fill("#text", typed)
        page.reload()
        expect(page.locator("#voice option")).not_to_have_count(1)
        expect(page.locator("#text")).to_have_value(typed)


def test_after_an_edit_the_speech_is_marked_as_of_the_earlier_text(visit, server):
    there = visit(server.url)
    page = there.page
    there.say("Hello there.", seed=7)
    there.status("s of speech.")
    expect(page.locator("#outdated")).to_be_hidden()
    expect(page.locator("#download")).to_have_text("Download WAV")
    page.fill("#text", "Hello there. And more.")
    expect(page.locator("#outdated")).to_be_visible()
    expect(page.locator("#download")).to_have_text("Download WAV of the earlier text")
    expect(page.locator("#result")).to_have_class("card outdated")
    page.fill("#text", "Hello there.")
    expect(page.locator("#outdated")).to_be_hidden()


def test_too_long_a_text_offers_a_job(visit, serve):
    page = visit(serve(max_characters=20, max_job_characters=60).url).page
    offer = page.locator("#job-offer")
    page.fill("#text", "x" * 20)
    expect(offer).to_be_hidden()
    page.fill("#text", "This is longer than twenty characters.")
    expect(offer).to_contain_text("This text is too long to speak at once.")
    offer.get_by_role("button", name="Speak as a job").click()
    expect(page.locator("#job-list")).to_contain_text("This is longer than twenty characters.")
    # Too long even for a job.
    page.fill("#text", "x" * 61)
    expect(offer).to_be_hidden()
    without_jobs = visit(serve(max_characters=20, max_jobs=0).url).page
    without_jobs.fill("#text", "x" * 21)
    expect(without_jobs.locator("#characters")).to_have_class("quiet too-many")
    expect(without_jobs.locator("#job-offer")).to_be_hidden()


def test_on_a_phone_controls_precede_the_result_and_the_sentence_to_read_is_whole(visit, server):
    phone = {"viewport": {"width": 320, "height": 700}, "has_touch": True, "is_mobile": True}
    page = visit(server.url, **phone).page
    tops = [page.locator(name).bounding_box()["y"] for name in ("#speak", "#voice", "#options", "#result")]
    assert tops == sorted(tops)
    page.click("#new-voice")
    sentence = page.locator("#suggestion")
    expect(sentence).to_have_text(
        "The birch canoe slid on the smooth planks, and the boy was there when the sun rose."
    )
    box = sentence.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 320
    # On wide screens they are next to each other.
    desk = visit(server.url, viewport={"width": 1280, "height": 800}).page
    speech, voice = (desk.locator(name).bounding_box() for name in ("#result", "#voice"))
    assert voice["y"] < speech["y"]
    assert voice["x"] > speech["x"] + speech["width"]
