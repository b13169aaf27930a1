import contextlib
import os
import shutil

import numpy as np
import pytest
import soundfile

from voxcpm_runtime.audio.pcm import pcm16

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
# What goes to the loudspeaker also goes to the page's own worklet, which tells every sample; and the browser tells
# what the policy has refused.
LISTENING = """
    window.heard = [];
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
    const taps = new WeakMap();
    const connect = AudioNode.prototype.connect;
    AudioNode.prototype.connect = function (target, ...others) {
        if (target instanceof AudioDestinationNode && !(this instanceof AudioWorkletNode)) {
            connect.call(this, tap(target.context));
        }
        return connect.call(this, target, ...others);
    };
    function tap(context) {
        if (!taps.has(context)) {
            taps.set(context, new GainNode(context));
            context.audioWorklet.addModule("page/capture.js").then(() => {
                const capture = new AudioWorkletNode(context, "capture");
                capture.port.onmessage = ({ data }) => heard.push(data);
                connect.call(taps.get(context), capture);
                connect.call(capture, context.destination);
                window.listening = true;
            });
        }
        return taps.get(context);
    }
"""


class Visit:
    """The page of a server in a browser, and the browser's errors."""

    def __init__(self, page, url):
        self.page = page
        self.complaints: list[str] = []
        page.set_default_timeout(20_000)
        page.add_init_script(LISTENING)
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self._note("error", str(error)))
        page.goto(url)

    def _note(self, kind, text):
        if kind in {"error", "warning"}:
            self.complaints.append(text)

    def say(self, text, seed=None):
        """Type a text and press the button."""
        self.page.fill("#text", text)
        if seed is not None:
            self.page.fill("#seed", str(seed))
        self.page.click("#speak-button")

    def status(self, text):
        """Wait until the status contains this text."""
        from playwright.sync_api import expect

        expect(self.page.locator("#status")).to_contain_text(text, timeout=60_000)

    def heard(self):
        """All samples (samples,) that the loudspeaker got, in steps of 16 bits, silence left out."""
        pieces = self.page.evaluate("heard.map((piece) => Array.from(piece))")
        # The browser places pieces between samples, up to the last bit of a double.
        samples = np.rint(np.concatenate([np.zeros(0), *pieces]) * 32768).astype(np.int16)
        return samples[samples != 0]

    def expect_heard(self, samples):
        """Wait until that many non-silent samples were played."""
        wanted = np.count_nonzero(samples)
        for _ in range(100):
            if len(self.heard()) >= wanted:
                break
            self.page.wait_for_timeout(100)
        np.testing.assert_array_equal(self.heard(), samples[samples != 0])


@pytest.fixture(scope="module")
def said(tts):
    """The runtime's speech of "Hello there." with seed 7, as 16-bit samples (samples,)."""
    return pcm16(tts.generate("Hello there.", seed=7, retry_badcase=False))


@pytest.fixture(scope="module")
def browser(spoken, tmp_path_factory):
    """Chromium, whose microphone hears `spoken`."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = [os.environ.get("CHROMIUM"), *map(shutil.which, BROWSERS)]
    executable = next(filter(None, found), None)
    if executable is None:
        pytest.skip("needs Chromium or Chrome (Debian, Ubuntu: apt-get install chromium)")
    said = tmp_path_factory.mktemp("microphone") / "said.wav"
    soundfile.write(said, np.tile(spoken.audio, 2), spoken.sample_rate, subtype="PCM_16")
    microphone = ("device-for-media-stream", "ui-for-media-stream", f"file-for-fake-audio-capture={said}")
    flags = [f"--use-{'' if '=' in name else 'fake-'}{name}" for name in microphone]
    # As root it has no sandbox; it only visits this server.
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=executable, args=[*flags, *sandbox])
        yield started
        started.close()


@pytest.fixture
def visit(browser):
    """visit(url, **context): the page in a new window; the browser may report only failed requests."""
    visits = []
    with contextlib.ExitStack() as contexts:

        def opened(url, **options):
            context = browser.new_context(**options)
            contexts.callback(context.close)
            visits.append(Visit(context.new_page(), url))
            return visits[-1]

        yield opened
        complaints = [
            line for made in visits for line in made.complaints if "Failed to load resource" not in line
        ]
        assert not complaints
        assert not [made.page.evaluate("violations") for made in visits if made.page.evaluate("violations")]
