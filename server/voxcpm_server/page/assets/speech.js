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
  /** The words whose times are known, in order: `word`, `start_ms` and `end_ms`. */
  words = [];

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
   * Calls onStart(rate) when the response begins, onPiece(piece) with each Int16Array, and onWords(words) with the
   * words of each segment.
   * Throws RequestError; cancellation is not an error.
   */
  async read(onStart, onPiece, onWords) {
    const start = performance.now();
    // WAV has the voice's own rate; raw samples would have OpenAI's.
    const json = { ...this.request, response_format: "wav", stream_format: "sse", word_timestamps: true };
    const decode = wavDecoder();
    try {
      const answer = await fetchOk("v1/audio/speech", { json, signal: this.#abort.signal });
      this.seed = answer.headers.get("X-Seed");
      this.rate = Number(answer.headers.get("X-Sample-Rate"));
      onStart(this.rate);
      for await (const event of eventsOf(answer.body)) {
        if (event.error) throw new Error(event.error.message);
        if (event.words) {
          this.words.push(...event.words);
          onWords(event.words);
        }
        const piece = event.audio && decode(Uint8Array.from(atob(event.audio), (char) => char.charCodeAt(0)));
        if (!piece?.length) continue;
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

/** Yields the objects of server-sent events. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: {")) yield JSON.parse(event.slice("data: ".length));
  }
}

/** A function that returns the 16-bit samples of chunks of a WAV with a 44-byte header. Chunks may end within a sample. */
function wavDecoder() {
  let rest = new Uint8Array();
  let header = HEADER_BYTES;
  return (chunk) => {
    const content = chunk.subarray(header);
    header -= chunk.length - content.length;
    const bytes = new Uint8Array(rest.length + content.length);
    bytes.set(rest);
    bytes.set(content, rest.length);
    const whole = bytes.length - (bytes.length % 2);
    rest = bytes.slice(whole);
    const view = new DataView(bytes.buffer, 0, whole);
    return Int16Array.from({ length: whole / 2 }, (_, index) => view.getInt16(2 * index, true));
  };
}
