// An audio worklet that posts the microphone's samples to the page.

class Capture extends AudioWorkletProcessor {
  process([input]) {
    if (input.length) this.port.postMessage(input[0].slice());
    return true;
  }
}

registerProcessor("capture", Capture);
