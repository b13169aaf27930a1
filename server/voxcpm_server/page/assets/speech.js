// A streamed speech: its samples as they arrive, and timing measurements.

import { fetchOk } from "./server.js";

const HEADER_BYTES = 44;
// UTF-8 bytes per second of speech, estimated low: about 15 in English and in scripts with two or three bytes per
// letter. A digit is spoken as a word.
const TEXT_BYTES_PER_SECOND = 12;
const WORD = "word ";
// Minimum seconds of speech for a speed measurement and, if it seems slow, of elapsed time, as the first pieces are the
// slowest.
const MEASURED_SECONDS = 0.25;
const SLOW_SECONDS = 2;
// Safety factors for the measured speed, and for a speech that exceeds its estimated length.
const SPEED_MARGIN = 1.1;
const LENGTH_MARGIN = 1.25;

/** Requests speech and streams its samples. */
export class Speech {
  pieces = [];
  samples = 0;
  /** Sample rate in Hz and seed; known with the response. */
  rate = null;
  seed = null;
  /** Seconds from the request to the first samples, and to the latest ones. */
  firstAudio = null;
  elapsed = 0;
  /** Whether all of it has arrived. */
  whole = false;

  #abort = new AbortController();
  #expectedSeconds;

  /** request: the body of /v1/audio/speech. */
  constructor(request) {
    this.request = request;
    const { input, speed = 1 } = request;
    this.#expectedSeconds = new TextEncoder().encode(input.replace(/\d/g, WORD)).length / TEXT_BYTES_PER_SECOND / speed;
  }

  get seconds() {
    return this.samples ? this.samples / this.rate : 0;
  }

  /** Real-time factor after the first samples, so that time in the queue does not count. */
  get realTimeFactor() {
    const samples = this.samples - (this.pieces[0]?.length ?? 0);
    return samples ? ((this.elapsed - this.firstAudio) * this.rate) / samples : null;
  }

  /**
   * Seconds that playback from a sample must wait to avoid underruns; 0 or less if it need not wait. Estimated from the
   * length of the text and the measured speed.
   */
  delay(sample) {
    const measuredSamples = this.samples - (this.pieces[0]?.length ?? 0);
    const factor = this.realTimeFactor;
    const isStarting = factor > 1 && this.elapsed - this.firstAudio < SLOW_SECONDS;
    if (isStarting || measuredSamples < MEASURED_SECONDS * this.rate) return Infinity;
    const expected = Math.max(this.#expectedSeconds, LENGTH_MARGIN * this.seconds);
    const secondsToMake = SPEED_MARGIN * factor * (expected - this.seconds);
    return secondsToMake - (expected - sample / this.rate);
  }

  /**
   * Calls onStart(rate) when the response begins, and onPiece(piece) with each Int16Array.
   * Throws RequestError; cancellation is not an error.
   */
  async read(onStart, onPiece) {
    const start = performance.now();
    // WAV has the voice's own rate; raw samples would have OpenAI's.
    const json = { ...this.request, response_format: "wav" };
    try {
      const answer = await fetchOk("v1/audio/speech", { json, signal: this.#abort.signal });
      this.seed = answer.headers.get("X-Seed");
      this.rate = Number(answer.headers.get("X-Sample-Rate"));
      onStart(this.rate);
      for await (const piece of samplesOf(answer.body)) {
        this.elapsed = (performance.now() - start) / 1000;
        this.firstAudio ??= this.elapsed;
        this.pieces.push(piece);
        this.samples += piece.length;
        onPiece(piece);
      }
      this.whole = true;
    } catch (error) {
      if (this.#abort.signal.aborted) return;
      throw this.samples ? new Error("The speech was interrupted; you can play the part that arrived.") : error;
    }
  }

  /** Aborts the request; the server notices and stops speaking. */
  cancel() {
    this.#abort.abort();
  }
}

/** Yields the 16-bit samples of a WAV body with a 44-byte header. Chunks may end within a sample. */
async function* samplesOf(body) {
  const reader = body.getReader();
  let rest = new Uint8Array();
  let header = HEADER_BYTES;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const content = value.subarray(header);
    header -= value.length - content.length;
    const bytes = new Uint8Array(rest.length + content.length);
    bytes.set(rest);
    bytes.set(content, rest.length);
    const whole = bytes.length - (bytes.length % 2);
    rest = bytes.slice(whole);
    if (!whole) continue;
    const view = new DataView(bytes.buffer, 0, whole);
    yield Int16Array.from({ length: whole / 2 }, (_, index) => view.getInt16(2 * index, true));
  }
}
