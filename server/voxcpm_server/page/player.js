// Plays samples while they come, and again from anywhere.

// Seconds between the decision to play and the first sample, so that the first one is not late.
const LEAD = 0.03;
// Seconds of speech to have before playing begins; doubled by each gap, so that slow speech has few long gaps, not many.
const LEAST_CUSHION = 0.1;
const MOST_CUSHION = 4;

/** Fires "change" when it begins, pauses or reaches the end. */
export class Player extends EventTarget {
  playing = false;
  samples = 0;
  /** How often it had to wait for more. */
  gaps = 0;

  #context = null;
  #pieces = [];
  #sources = new Set();
  #complete = true;
  #cushion = LEAST_CUSHION;
  // Samples that are played or scheduled, and the sample and time at which the present run of them began.
  #scheduled = 0;
  #run = null;

  get rate() {
    return this.#context?.sampleRate ?? 1;
  }

  /** Where it is, in samples. */
  get position() {
    if (!this.#run) return this.#scheduled;
    const passed = Math.max(0, this.#context.currentTime - this.#run.time) * this.rate;
    return Math.min(this.#run.sample + passed, this.#scheduled);
  }

  /** Gets ready to sound. Call it while a click or key is handled: browsers let nothing else begin to sound. */
  prepare(rate) {
    this.pause();
    if (this.#context?.sampleRate !== rate) {
      this.#context?.close();
      this.#context = new AudioContext({ sampleRate: rate });
    }
    this.#context.resume();
  }

  /** Begins a new speech of that many samples a second. */
  open(rate) {
    this.prepare(rate);
    this.#pieces = [];
    this.samples = this.#scheduled = this.gaps = 0;
    this.#cushion = LEAST_CUSHION;
    this.#complete = false;
    this.playFrom(0);
  }

  /** piece: an Int16Array. */
  push(piece) {
    this.#pieces.push({ start: this.samples, values: Float32Array.from(piece, (value) => value / 32768) });
    this.samples += piece.length;
    if (this.playing) this.#schedule();
  }

  /** Nothing more comes. */
  complete() {
    this.#complete = true;
    if (this.playing) this.#schedule();
    this.#endIfPlayed();
  }

  playFrom(sample) {
    this.#silence();
    this.#scheduled = Math.min(Math.max(0, Math.floor(sample)), this.samples);
    if (this.#complete && this.#scheduled >= this.samples) this.#scheduled = 0;
    this.playing = true;
    this.#context.resume();
    this.#schedule();
    this.dispatchEvent(new Event("change"));
  }

  pause() {
    this.#scheduled = Math.floor(this.position);
    this.#silence();
    if (!this.playing) return;
    this.playing = false;
    this.#context.suspend();
    this.dispatchEvent(new Event("change"));
  }

  #silence() {
    for (const source of this.#sources) {
      source.onended = null;
      source.stop();
    }
    this.#sources.clear();
    this.#run = null;
  }

  #schedule() {
    const waiting = this.samples - this.#scheduled;
    if (!waiting) return;
    const now = this.#context.currentTime;
    const due = this.#run && this.#run.time + (this.#scheduled - this.#run.sample) / this.rate;
    if (!this.#run || due < now) {
      if (this.#run) {
        this.gaps += 1;
        this.#cushion = Math.min(2 * this.#cushion, MOST_CUSHION);
        this.#run = null;
      }
      if (!this.#complete && waiting / this.rate < this.#cushion) return;
      // On a whole sample, so that pieces meet exactly.
      this.#run = { sample: this.#scheduled, time: Math.ceil((now + LEAD) * this.rate) / this.rate };
    }
    for (const { start, values } of this.#pieces) {
      if (start + values.length > this.#scheduled) this.#play(values.subarray(this.#scheduled - start));
    }
  }

  #play(values) {
    const buffer = this.#context.createBuffer(1, values.length, this.rate);
    buffer.copyToChannel(values, 0);
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(this.#context.destination);
    source.onended = () => {
      this.#sources.delete(source);
      this.#endIfPlayed();
    };
    this.#sources.add(source);
    source.start(this.#run.time + (this.#scheduled - this.#run.sample) / this.rate);
    this.#scheduled += values.length;
  }

  #endIfPlayed() {
    const played = this.#scheduled === this.samples && !this.#sources.size;
    if (this.playing && this.#complete && played) this.pause();
  }
}
