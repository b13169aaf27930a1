"""What the page does with the text as it is written, edited and reloaded."""

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect

pytestmark = pytest.mark.page


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
    expect(page.locator("#outdated")).to_have_text(
        "This is the speech of the earlier text. Press Speak for the new one."
    )
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
