// Plays samples as they arrive, with seeking and replay.

// Seconds to schedule the first sample ahead, so that it is not late.
const LEAD = 0.03;
// Seconds of speech to buffer before playback; doubled after each gap.
const MIN_BUFFER = 0.1;
const MAX_BUFFER = 4;

/** Fires "change" on play, pause and end. */
export class Player extends EventTarget {
  playing = false;
  samples = 0;
  /** Number of buffer underruns. */
  gaps = 0;

  #context = null;
  #pieces = [];
  #sources = new Set();
  #complete = true;
  #delay = () => 0;
  // Samples played or scheduled so far; start sample and time of the current gapless run.
  #scheduled = 0;
  #run = null;

  get rate() {
    return this.#context?.sampleRate ?? 1;
  }

  /** Seconds until playback starts; 0 or less while playing or about to. */
  get delay() {
    return this.#run ? 0 : this.#delay(this.#scheduled);
  }

  /** Playback position in samples. */
  get position() {
    if (!this.#run) return this.#scheduled;
    const passed = Math.max(0, this.#context.currentTime - this.#run.time) * this.rate;
    return Math.min(this.#run.sample + passed, this.#scheduled);
  }

  /** Clears the last speech. Call it in a click or key handler: browsers block audio otherwise. */
  prepare(rate) {
    this.pause();
    this.#pieces = [];
    this.samples = this.#scheduled = this.gaps = 0;
    if (this.#context?.sampleRate !== rate) {
      this.#context?.close();
      this.#context = new AudioContext({ sampleRate: rate });
    }
    this.#context.resume();
  }

  /** Starts a new speech. rate: in Hz. delay(sample): seconds to wait before playing from there. */
  open(rate, delay) {
    this.prepare(rate);
    this.#delay = delay;
    this.#complete = false;
    this.playFrom(0);
  }

  /** piece: an Int16Array. */
  push(piece) {
    this.#pieces.push({ start: this.samples, values: Float32Array.from(piece, (value) => value / 32768) });
    this.samples += piece.length;
    if (this.playing) this.#schedule();
  }

  /** Marks the speech as complete. */
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
        this.#run = null;
      }
      const buffer = Math.min(MIN_BUFFER * 2 ** this.gaps, MAX_BUFFER);
      if (!this.#complete && (waiting / this.rate < buffer || this.delay > 0)) return;
      // Aligned to a whole sample, so that pieces join exactly.
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
