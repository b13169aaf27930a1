"""The page in a real browser: speech, playback, cancellation, errors and accessibility."""

import io
from pathlib import Path

import av
import matplotlib.image
import numpy as np
import pytest
import soundfile

from waiting import until

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect

pytestmark = pytest.mark.page
REPOSITORY = Path(__file__).resolve().parents[3]
# Screenshots, which continuous integration uploads; git ignores the folder.
SCREENSHOTS = REPOSITORY / "build" / "screenshots"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SHOW_ALL = """() => document.querySelectorAll("main [hidden]").forEach((each) => {
    each.hidden = false;
    each.dataset.shown = "";
})"""
HIDE_AGAIN = """() => document.querySelectorAll("[data-shown]").forEach((each) => {
    each.hidden = true;
    delete each.dataset.shown;
})"""
TEXT = "Hello there."
# The colour of played audio in the light theme (style.css).
ACCENT = (0x0B, 0x6B, 0x64)
# For each piece that is played: when it starts, when it ends, and the time at which it was scheduled, in seconds.
NOTE_STARTS = """() => {
    window.starts = [];
    const start = AudioBufferSourceNode.prototype.start;
    AudioBufferSourceNode.prototype.start = function (when) {
        starts.push([when, when + this.buffer.duration, this.context.currentTime]);
        return start.call(this, when);
    };
}"""
LONG = "one two three four five six seven. " * 20


def downloaded(page):
    """Name and content of the downloaded file."""
    with page.expect_download() as download:
        page.click("#download")
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def played_bars(page):
    """The number of waveform pixels in the colour of played audio."""
    picture = matplotlib.image.imread(io.BytesIO(page.locator("#waveform").screenshot()))
    return int(np.all(np.abs(picture[..., :3] * 255 - ACCENT) < 2, axis=-1).sum())


def test_every_sample_is_played_drawn_and_saved(visit, server, said):
    there = visit(server.url)
    page = there.page
    assert played_bars(page) == 0
    # The first speech creates the audio context that the test records.
    there.say("Hi.", seed=1)
    there.status("s of speech.")
    expect(page.locator("#play")).to_contain_text("Play", timeout=20_000)
    page.evaluate("heard.length = 0")
    there.say(TEXT, seed=7)
    there.status(f"{len(said) / 24000:.1f} s of speech.")
    there.expect_heard(said)
    expect(page.locator("#play")).to_contain_text("Play", timeout=20_000)
    assert played_bars(page) > 1000
    assert float(page.inner_text("#first-audio").removesuffix(" s")) > 0
    assert float(page.inner_text("#real-time-factor")) > 0
    assert page.inner_text("#keep-seed") == "7"
    assert page.get_attribute("#position", "aria-valuemax") == f"{len(said) / 24000:.1f}"
    name, content = downloaded(page)
    samples, rate = soundfile.read(io.BytesIO(content), dtype="int16")
    assert (name, rate) == ("speech.wav", 24_000)
    np.testing.assert_array_equal(samples, said)
    page.select_option("#format", "flac")
    name, content = downloaded(page)
    assert name == "speech.flac"
    with av.open(io.BytesIO(content)) as file:
        flac = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    np.testing.assert_array_equal(flac, said)


def test_the_word_that_is_said_is_marked(visit, server):
    there = visit(server.url)
    page = there.page
    # Each mark as it is set, with the second of the recording that is played.
    page.evaluate("""() => {
        window.marks = [];
        const note = () => {
            const word = document.querySelector("#words .said")?.textContent.trim();
            const now = Number(document.querySelector("#position").getAttribute("aria-valuenow"));
            if (word && word !== marks.at(-1)?.word) marks.push({ word, now });
        };
        const options = { subtree: true, childList: true, attributes: true, attributeFilter: ["class"] };
        new MutationObserver(note).observe(document.querySelector("#words"), options);
    }""")
    there.say("It costs $4.20, said Ada.", seed=7)
    there.status("s of speech.")
    expect(page.locator("#words")).to_have_text("It costs $4.20, said Ada. ")
    expect(page.locator("#play")).to_contain_text("Play", timeout=20_000)
    page.evaluate("marks.length = 0")
    page.focus("#position")
    page.keyboard.press("Home")
    expect(page.locator("#play")).to_contain_text("Play", timeout=20_000)
    marks = page.evaluate("marks")
    assert [mark["word"] for mark in marks] == ["It", "costs", "$4.20,", "said", "Ada."]
    # It neither covers the space after a word nor stays on the last word.
    assert page.eval_on_selector_all("#words *", "(all) => all.every((one) => !/\\s/.test(one.textContent))")
    expect(page.locator("#words .said")).to_have_count(0)
    times = [mark["now"] for mark in marks]
    assert times == sorted(times)
    # Four words are read in "$4.20".
    assert times[3] - times[2] > times[2] - times[1]


def test_keyboard_navigation(visit, server, said):
    there = visit(server.url)
    page = there.page
    # The text has the focus initially.
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.type(TEXT)
    page.fill("#seed", "7")
    page.focus("#text")
    page.keyboard.press("Control+Enter")
    there.status("s of speech.")
    expect(page.locator("#play")).to_contain_text("Play", timeout=20_000)
    page.focus("#position")
    page.keyboard.press("Home")
    expect(page.locator("#play")).to_contain_text("Pause")
    page.keyboard.press("Escape")
    expect(page.locator("#play")).to_contain_text("Play")
    now = float(page.get_attribute("#position", "aria-valuenow") or 0)
    assert now < len(said) / 24000
    page.focus("#play")
    page.keyboard.press("Space")
    expect(page.locator("#play")).to_contain_text("Pause")


def test_speech_is_cancelled(visit, server):
    there = visit(server.url)
    there.say(LONG)
    there.status("Speaking")
    expect(there.page.locator("#speak-button")).to_contain_text("Stop")
    there.page.click("#speak-button")
    there.status("incomplete")
    expect(there.page.locator("#speak-button")).to_contain_text("Speak")
    until(lambda: not server.service.queue.busy)
    # The received part can be played and saved.
    samples, _ = soundfile.read(io.BytesIO(downloaded(there.page)[1]))
    assert 0 < len(samples) < 60 * 24_000


def test_slow_speech_is_buffered_and_plays_without_gaps(visit, serve, euler_steps):
    there = visit(serve().url)
    page = there.page
    page.evaluate(NOTE_STARTS)
    euler_steps.seconds = 0.06
    there.say("The sea was calm, and nobody said a word until the lights came up.", seed=7)
    there.status("This server is slower than real time; playback starts in about ")
    there.status("s of speech.")
    expect(page.locator("#play")).to_contain_text("Play", timeout=20_000)
    assert float(page.inner_text("#real-time-factor")) > 3
    starts = np.array(page.evaluate("starts"))
    assert len(starts) > 10
    assert np.all(starts[:, 0] >= starts[:, 2])
    np.testing.assert_allclose(starts[1:, 0], starts[:-1, 1], atol=1e-6)
    assert page.text_content("#gaps") == "0"


def test_errors_show_the_servers_message_and_never_as_html(visit, serve):
    there = visit(serve(max_characters=50).url)
    page = there.page
    there.say("Hi.", seed=1)
    there.status("s of speech.")
    expect(page.locator("#play")).to_contain_text("Play", timeout=20_000)
    assert played_bars(page) > 0
    there.say("<img src=x onerror=alert(1)> " + LONG)
    expect(page.locator("#error")).to_contain_text("Input: expected at most 50 characters, got ")
    # No part of it was played.
    assert played_bars(page) == 0
    expect(page.locator("#characters")).to_have_class("quiet too-many")
    assert "<img src=x" in page.inner_text("#curl")
    assert page.locator("img").count() == 0

    page.fill("#text", TEXT)
    for hidden in ("#cfg_value", "#inference_timesteps", "#gaps"):
        expect(page.locator(hidden)).to_be_hidden()
    page.click("#advanced summary")
    page.fill("#inference_timesteps", "5000")
    page.click("#advanced summary")
    page.click("#speak-button")
    expect(page.locator("#inference_timesteps")).to_be_focused()

    # A deleted voice, and a server that is down.
    page.evaluate("document.getElementById('voice').append(new Option('<b>gone</b>'))")
    page.select_option("#voice", "<b>gone</b>")
    page.click("#reset")
    page.click("#speak-button")
    expect(page.locator("#error")).to_contain_text("<b>gone</b>")
    assert page.locator("b").count() == 0
    page.route("**/audio/speech", lambda route: route.abort())
    page.click("#speak-button")
    expect(page.locator("#error")).to_have_text("Cannot connect to the server.")


def test_key_is_requested_and_stored_in_session_storage(visit, serve):
    there = visit(serve(keys=("secret-1",)).url)
    page = there.page
    for wrong in (None, "wrong", "ключ"):
        expect(page.locator("#key")).to_be_focused()
        if wrong is not None:
            page.fill("#key", wrong)
            page.keyboard.press("Enter")
            expect(page.locator("#access [role=alert]")).to_have_text("The server rejected this key.")
            page.locator("#key-error").evaluate("(line) => line.replaceChildren()")
        for button in ("#speak-button", "#preview", "#submit-job", "#new-voice"):
            expect(page.locator(button)).to_be_disabled()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.focus("#text")
    page.keyboard.press("Control+Enter")
    page.fill("#key", "secret-1")
    page.focus("#key")
    page.keyboard.press("Enter")
    expect(page.locator("#access")).to_be_hidden()
    expect(page.locator("#error")).to_be_hidden()
    assert not [url for url in requests if url.endswith("/audio/speech")]
    there.say("Hi.", seed=1)
    there.status("s of speech.")
    assert "secret-1" not in page.content()
    assert "secret-1" in page.evaluate("Object.values(sessionStorage)")
    assert "secret-1" not in page.evaluate("[...Object.values(localStorage), document.cookie]")
    assert "$OPENAI_API_KEY" in page.inner_text("#curl")
    page.reload()
    expect(page.locator("#voice option")).not_to_have_count(1)
    expect(page.locator("#access")).to_be_hidden()


def test_style_field_is_shown_for_models_that_support_it(visit, server):
    page = visit(server.url).page
    expect(page.locator("#instructions")).to_be_hidden()

    def with_style(route):
        answer = route.fetch()
        about = answer.json()
        about["models"] = [
            {**about["models"][0], "takes_instructions": True},
            {**about["models"][0], "id": "two"},
        ]
        route.fulfill(response=answer, json=about)

    page.route("**/v1/about", with_style)
    page.reload()
    page.fill("#instructions", "calmly")
    assert '"instructions":"calmly"' in page.inner_text("#curl")
    page.select_option("#model", "two")
    expect(page.locator("#instructions")).to_be_hidden()
    assert '"model":"two"' in page.inner_text("#curl")
    assert "calmly" not in page.inner_text("#curl")


def test_layout_and_contrast(visit, server):
    """No horizontal scrolling and no axe violations of WCAG 2.2 AA; screenshots for review."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    there = visit(server.url, viewport={"width": 320, "height": 800}, reduced_motion="reduce")
    page = there.page
    # On narrow screens they are collapsed.
    page.click("#options > summary")
    page.click("#advanced summary")
    there.say(TEXT, seed=7)
    there.status("s of speech.")
    expect(page.locator("#play")).to_contain_text("Play", timeout=20_000)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for width in (320, 768, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=SCREENSHOTS / f"page-{width}-{scheme}.png", full_page=True)
            # Check the hidden parts too.
            page.evaluate(SHOW_ALL)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            found = axe.run(page, options={"runOnly": {"type": "tag", "values": RULES}})
            assert found.violations_count == 0, found.generate_report()
            page.evaluate(HIDE_AGAIN)
