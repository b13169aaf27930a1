// Voices: list, preview, delete, and create from a recording or a file.

import { fetchOk } from "./server.js";
import { Microphone } from "./microphone.js";
import { encodeWav } from "./wav.js";
import { Waveform } from "./waveform.js";
import { fillOptions } from "./settings.js";

const DEFAULT = "default";
const element = (id) => document.getElementById(id);

export class Voices {
  #about;
  #page;
  #level;
  #builtIn = [];
  #own = [];
  #microphone = null;
  #recording = null;
  #audio = null;

  /** page: attempt(work) shows errors, say(line) sets the status, sure(question) confirms, model() is the selected one. */
  constructor(about, page) {
    this.#about = about;
    this.#page = page;
    element("voice").addEventListener("change", () => this.#choose());
    element("preview").addEventListener("click", () => page.attempt(() => this.#preview()));
    element("delete-voice").addEventListener("click", () => page.attempt(() => this.#delete()));
    element("new-voice").addEventListener("click", () => this.#show(element("voice-form").hidden));
    element("cancel-voice").addEventListener("click", () => this.#show(false));
    element("record").addEventListener("click", () => page.attempt(() => this.#record()));
    element("voice-file").addEventListener("change", () => this.#setRecording(element("voice-file").files[0]));
    element("voice-form").addEventListener("submit", (event) => {
      event.preventDefault();
      page.attempt(() => this.#save());
    });
    this.#level = new Waveform(element("level-waveform"), () => {
      const { samples = 0, rate = 1 } = this.#microphone ?? {};
      return { played: samples, samples, rate, open: true };
    });
    const maxSeconds = about.limits.recording_seconds;
    element("recording-hint").textContent = Microphone.allowed
      ? `Record a few seconds of clear speech, or choose an audio file; at most ${maxSeconds} s.`
      : `Choose an audio file of at most ${maxSeconds} s. Browsers allow recording only on localhost and over HTTPS.`;
    element("record").disabled = element("read-aloud").hidden = !Microphone.allowed;
  }

  /** Fetches the list and selects a voice if it exists. */
  async list(chosen = element("voice").value) {
    const { voices } = await (await fetchOk("v1/audio/voices")).json();
    const others = [];
    this.#builtIn = [];
    this.#own = [];
    for (const { id, stored, built_in: builtIn, alias } of voices) {
      if (id === DEFAULT) continue;
      if (builtIn) this.#builtIn.push(id);
      else if (stored) this.#own.push(id);
      // OpenAI's names are for programs; here they would list the same voices again.
      else if (alias) others.push(id);
    }
    const sounds = new Map(voices.map(({ id, sound }) => [id, sound ? `${id} – ${sound}` : id]));
    const list = element("voice");
    fillOptions(list, [[DEFAULT, "Default"]]);
    for (const [label, ids] of [["Built in", this.#builtIn], ["Your own", this.#own], ["Other names", others]]) {
      if (!ids.length) continue;
      const group = document.createElement("optgroup");
      group.label = label;
      fillOptions(group, ids.map((id) => [id, sounds.get(id)]));
      list.append(group);
    }
    list.value = voices.some(({ id }) => id === chosen) ? chosen : DEFAULT;
    // As if the user had selected it, so that the code examples update.
    list.dispatchEvent(new Event("input", { bubbles: true }));
    this.#choose();
  }

  async #choose() {
    this.#stopPreview();
    const voice = element("voice").value;
    const own = this.#own.includes(voice);
    element("delete-voice").hidden = !own;
    const hint = element("voice-hint");
    hint.textContent = "";
    if (voice === DEFAULT) hint.textContent = "The model’s own voice.";
    else if (this.#builtIn.includes(voice)) hint.textContent = "This voice comes with the model.";
    else if (!own) hint.textContent = "Another name for a voice, for client compatibility.";
    if (!own) return;
    await this.#page.attempt(async () => {
      const voiceFacts = await (await fetchOk(`v1/audio/voices/${encodeURIComponent(voice)}`)).json();
      if (element("voice").value === voice) hint.textContent = description(voiceFacts);
    });
  }

  async #preview() {
    if (this.#stopPreview()) return;
    const button = element("preview");
    button.disabled = true;
    try {
      const answer = await fetchOk(`v1/audio/voices/${encodeURIComponent(element("voice").value)}/preview`);
      this.#audio = new Audio(URL.createObjectURL(await answer.blob()));
      this.#audio.addEventListener("ended", () => this.#stopPreview());
      button.textContent = "Stop";
    } finally {
      button.disabled = false;
    }
    await this.#audio.play();
  }

  /** Stops a preview; returns whether one was playing. */
  #stopPreview() {
    if (!this.#audio) return false;
    this.#audio.pause();
    URL.revokeObjectURL(this.#audio.src);
    this.#audio = null;
    element("preview").textContent = "Preview";
    return true;
  }

  async #delete() {
    const voice = element("voice").value;
    if (!(await this.#page.sure(`Delete the voice ${voice}? This cannot be undone.`))) return;
    await fetchOk(`v1/audio/voices/${encodeURIComponent(voice)}`, { method: "DELETE" });
    await this.list(DEFAULT);
    element("voice").focus();
    this.#page.say(`Voice ${voice} deleted.`);
  }

  #show(open) {
    element("voice-form").hidden = !open;
    element("new-voice").setAttribute("aria-expanded", String(open));
    if (open) {
      element("transcript").required = this.#page.model().needs_transcript === true;
      element("voice-name").focus();
      return;
    }
    this.#endRecording();
    element("voice-form").reset();
    this.#setRecording(null);
    element("new-voice").focus();
  }

  async #record() {
    if (this.#microphone) {
      this.#endRecording();
      return;
    }
    this.#setRecording(null);
    element("voice-file").value = "";
    const microphone = new Microphone();
    const maxSeconds = this.#about.limits.recording_seconds;
    try {
      await microphone.start((piece) => {
        this.#level.push(piece);
        const label = `Stop (${Math.floor(microphone.seconds)} s)`;
        const shown = element("record").lastElementChild;
        if (shown.textContent !== label) shown.textContent = label;
        if (microphone.seconds >= maxSeconds - 0.5) this.#endRecording();
      });
    } catch (error) {
      throw new Error(`Cannot use the microphone: ${error.message}`);
    }
    this.#microphone = microphone;
    element("record").setAttribute("aria-pressed", "true");
    element("record").lastElementChild.textContent = "Stop";
    element("level").hidden = false;
    this.#level.clear();
  }

  #endRecording() {
    const microphone = this.#microphone;
    if (!microphone) return;
    microphone.stop();
    this.#microphone = null;
    element("record").setAttribute("aria-pressed", "false");
    element("record").lastElementChild.textContent = "Record again";
    element("level").hidden = true;
    if (!element("transcript").value) element("transcript").value = element("suggestion").textContent;
    this.#setRecording(encodeWav(microphone.pieces, microphone.rate));
  }

  /** Sets the recording: a file, a blob, or null. */
  #setRecording(recording) {
    this.#recording = recording ?? null;
    const player = element("recorded");
    if (player.src) URL.revokeObjectURL(player.src);
    player.removeAttribute("src");
    player.hidden = !recording;
    if (recording) player.src = URL.createObjectURL(recording);
  }

  async #save() {
    this.#endRecording();
    const name = element("voice-name").value.trim();
    if (!this.#recording) throw new Error("Record a voice or choose an audio file first.");
    if (this.#recording.size > this.#about.limits.upload_bytes) {
      throw new Error(`The recording exceeds the upload limit of ${this.#about.limits.upload_bytes / 1e6} MB.`);
    }
    const form = new FormData();
    form.append("name", name);
    form.append("audio_sample", this.#recording, this.#recording.name ?? "recording.wav");
    if (element("transcript").value.trim()) form.append("transcript", element("transcript").value.trim());
    form.append("consent", String(element("consent").checked));
    const button = element("voice-form").querySelector("[type=submit]");
    button.disabled = true;
    this.#page.say("Creating the voice …");
    try {
      await fetchOk("v1/audio/voices", { method: "POST", body: form });
    } catch (error) {
      this.#page.say("");
      throw error;
    } finally {
      button.disabled = false;
    }
    this.#show(false);
    await this.list(name);
    this.#page.say(`Voice ${name} saved.`);
  }
}

function description({ created, prompt_seconds, reference_seconds, consent }) {
  const seconds = (prompt_seconds || reference_seconds).toFixed(1);
  const made = created ? `Created on ${created.slice(0, 10)} from` : "Created from";
  return `${made} ${seconds} s of speech${consent ? ", with the speaker’s consent" : ""}.`;
}
