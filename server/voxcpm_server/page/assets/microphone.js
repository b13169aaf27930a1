// Records samples from the microphone.

import { absoluteUrl } from "./server.js";

export class Microphone {
  pieces = [];
  samples = 0;

  #context = null;
  #stream = null;

  /** Whether the browser allows recording: only on localhost and over HTTPS. */
  static get allowed() {
    return Boolean(navigator.mediaDevices?.getUserMedia && window.AudioWorkletNode);
  }

  get rate() {
    return this.#context?.sampleRate ?? 1;
  }

  get seconds() {
    return this.samples / this.rate;
  }

  /** onPiece(piece): called with each Int16Array. Throws the browser's error if there is no microphone. */
  async start(onPiece) {
    // Unprocessed: call-quality filters distort the voice.
    const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    this.#stream = await navigator.mediaDevices.getUserMedia({ audio });
    try {
      this.#context = new AudioContext();
      await this.#context.audioWorklet.addModule(absoluteUrl("page/capture.js"));
    } catch (error) {
      this.stop();
      throw error;
    }
    const capture = new AudioWorkletNode(this.#context, "capture");
    capture.port.onmessage = ({ data }) => {
      const piece = Int16Array.from(data, (value) => Math.round(Math.min(1, Math.max(-1, value)) * 32767));
      this.pieces.push(piece);
      this.samples += piece.length;
      onPiece(piece);
    };
    // Outputs silence, but a node without a destination is not processed.
    new MediaStreamAudioSourceNode(this.#context, { mediaStream: this.#stream }).connect(capture);
    capture.connect(this.#context.destination);
  }

  stop() {
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#context?.close();
  }
}
