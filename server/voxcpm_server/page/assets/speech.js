// A speech of the server while it is made: its samples as they come, and what was measured on the way.

import { ask } from "./server.js";

const HEADER_BYTES = 44;
// Bytes of UTF-8 in a second of speech: about 15 in English, and as many in scripts of two or three bytes a letter. A
// digit is spoken as a word.
const TEXT_BYTES_PER_SECOND = 12;
const WORD = "word ";
// What measures the speed: seconds of speech after the first samples and, if it seems slow, seconds of time. The first
// pieces are the slowest.
const MEASURED_SECONDS = 0.25;
const SLOW_SECONDS = 2;
// What is added to the measured time, and to the length of a speech that is longer than its text seemed.
const SPEED_MARGIN = 1.1;
const LENGTH_MARGIN = 1.25;

/** Asks for a speech and hands over its samples. */
export class Speech {
  pieces = [];
  samples = 0;
  /** Samples a second, and the seed; known with the answer. */
  rate = null;
  seed = null;
  /** Seconds from the request to the first samples, and to the last ones that came. */
  firstAudio = null;
  elapsed = 0;
  /** Whether all of it has come. */
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

  /** Seconds for a second of the speech that came after its first samples: waiting in the queue does not count. */
  get realTimeFactor() {
    const samples = this.samples - (this.pieces[0]?.length ?? 0);
    return samples ? ((this.elapsed - this.firstAudio) * this.rate) / samples : null;
  }

  /**
   * How many seconds playback from a sample must wait so that it does not run out before the end; 0 or less if it need
   * not wait. The rest must be made by the time that it is due: both are estimates from the text and the measured speed.
   */
  delay(sample) {
    const measured = this.samples - (this.pieces[0]?.length ?? 0);
    const factor = this.realTimeFactor;
    const isStarting = factor > 1 && this.elapsed - this.firstAudio < SLOW_SECONDS;
    if (isStarting || measured < MEASURED_SECONDS * this.rate) return Infinity;
    const expected = Math.max(this.#expectedSeconds, LENGTH_MARGIN * this.seconds);
    const secondsToMake = SPEED_MARGIN * factor * (expected - this.seconds);
    return secondsToMake - (expected - sample / this.rate);
  }

  /**
   * Calls began(rate) when the answer comes, and taken(piece), an Int16Array, for each piece of it.
   * Throws Refusal; a cancelled speech ends without an error.
   */
  async read(began, taken) {
    const start = performance.now();
    // A WAV has the voice's own rate; raw samples would have that of OpenAI's.
    const json = { ...this.request, response_format: "wav" };
    try {
      const answer = await ask("v1/audio/speech", { json, signal: this.#abort.signal });
      this.seed = answer.headers.get("X-Seed");
      this.rate = Number(answer.headers.get("X-Sample-Rate"));
      began(this.rate);
      for await (const piece of piecesOf(answer.body)) {
        this.elapsed = (performance.now() - start) / 1000;
        this.firstAudio ??= this.elapsed;
        this.pieces.push(piece);
        this.samples += piece.length;
        taken(piece);
      }
      this.whole = true;
    } catch (error) {
      if (this.#abort.signal.aborted) return;
      throw this.samples ? new Error("The speech was cut off; you can play the part that arrived.") : error;
    }
  }

  /** Ends it: the server stops speaking as soon as it notices. */
  cancel() {
    this.#abort.abort();
  }
}

/** The 16-bit samples of a body, a WAV file with the plainest header; a part of it may end within a sample. */
async function* piecesOf(body) {
  const reader = body.getReader();
  let left = new Uint8Array();
  let header = HEADER_BYTES;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const content = value.subarray(header);
    header -= value.length - content.length;
    const bytes = new Uint8Array(left.length + content.length);
    bytes.set(left);
    bytes.set(content, left.length);
    const whole = bytes.length - (bytes.length % 2);
    left = bytes.slice(whole);
    if (!whole) continue;
    const view = new DataView(bytes.buffer, 0, whole);
    yield Int16Array.from({ length: whole / 2 }, (_, index) => view.getInt16(2 * index, true));
  }
}
