// Draws a waveform as samples arrive.

const BLOCK = 256;
const BAR = 3;
const STEP = 5;
// Initial width in seconds while the speech's length is unknown; doubled when full.
const ROOM = 5;

export class Waveform {
  #canvas;
  #peaks = [];
  #filled = 0;
  #frame = null;
  #shown;

  /** shown(): what to draw: samples played, samples available, rate in Hz, whether more will follow. */
  constructor(canvas, shown) {
    this.#canvas = canvas;
    this.#shown = shown;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    this.#peaks = [];
    this.#filled = 0;
    this.draw();
  }

  /** samples: an Int16Array. */
  push(samples) {
    for (const value of samples) {
      const block = Math.floor(this.#filled++ / BLOCK);
      this.#peaks[block] = Math.max(this.#peaks[block] ?? 0, Math.abs(value) / 32768);
    }
    this.draw();
  }

  /** Schedules one redraw for the next animation frame. */
  draw() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#draw();
    });
  }

  #draw() {
    const { played, samples, rate, open } = this.#shown();
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const ratio = window.devicePixelRatio || 1;
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    const pen = this.#canvas.getContext("2d");
    if (!pen || !width) return;
    pen.scale(ratio, ratio);
    let room = samples;
    if (open || !samples) for (room = ROOM * rate; room < samples; ) room *= 2;
    const bars = Math.floor((width - 2 * STEP) / STEP);
    const colours = getComputedStyle(this.#canvas);
    const [rest, accent] = ["--wave-rest", "--accent"].map((name) => colours.getPropertyValue(name));
    const loudest = Math.max(0.2, this.#loudest(0, this.#peaks.length));
    for (let bar = 0; bar < bars; bar++) {
      const [from, to] = [(bar * room) / bars, ((bar + 1) * room) / bars];
      const peak = this.#loudest(Math.floor(from / BLOCK), Math.ceil(to / BLOCK)) / loudest;
      const size = Math.max(BAR, peak * (height - 16));
      pen.fillStyle = samples && to <= played + (to - from) / 2 ? accent : rest;
      pen.globalAlpha = from < samples ? 1 : 0.45;
      pen.beginPath();
      pen.roundRect(STEP + bar * STEP, (height - size) / 2, BAR, size, BAR / 2);
      pen.fill();
    }
  }

  #loudest(from, to) {
    let loudest = 0;
    for (let block = from; block < Math.min(to, this.#peaks.length); block++) {
      loudest = Math.max(loudest, this.#peaks[block]);
    }
    return loudest;
  }
}
