// The page: what its controls do. Text of users and servers is only ever set as text.

import { address, ask, key, Refusal, sentence } from "./server.js";
import { Jobs } from "./jobs.js";
import { Player } from "./player.js";
import { curlOf, pythonOf } from "./programs.js";
import { fill, Settings } from "./settings.js";
import { Speech } from "./speech.js";
import { Voices } from "./voices.js";
import { save, wavOf } from "./wav.js";
import { Waveform } from "./waveform.js";

const SKIP_SECONDS = 1;
const SAMPLE_TEXT = "Welcome! Whatever you write here is spoken by this server. Change the text, choose a voice, and press Speak.";
const NEED_A_KEY = ["speak-button", "preview", "new-voice", "submit-job"];
const DELAY_STEP_SECONDS = 5;
const VISITED = "voxcpm-coreml-visited";
// A rate to begin with where the model's own is not known yet.
const USUAL_RATE = 44_100;
const element = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const player = new Player();
let about;
let settings;
let voices;
let jobs;
let speech = null;
/** Whether samples of the speech still come. */
let busy = false;

const waveform = new Waveform(element("waveform"), () => ({
  played: player.position,
  samples: player.samples,
  rate: speech?.rate ?? 1,
  open: busy,
}));

/** What the form asks for, in the format that it names. */
const request = () => ({ ...settings.request, response_format: settings.format });

/** Whether the server asks for a key that this tab does not have. */
const isLocked = () => about.needs_key && !key.get();

function say(line) {
  if (element("status").textContent !== line) element("status").textContent = line;
}

/** Does some work and shows the one line of its error. Work in the background keeps the line that is there. */
async function attempt(work, { unasked = false } = {}) {
  if (!unasked) element("error").hidden = true;
  try {
    await work();
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) {
      refuseKey();
      return;
    }
    element("error").textContent = sentence(error.message);
    element("error").hidden = false;
    element("error").scrollIntoView({ block: "nearest" });
  }
}

/** Asks a question; whether the answer was yes. */
function sure(question) {
  const dialog = element("sure");
  element("question").textContent = question;
  return new Promise((resolve) => {
    element("yes").onclick = () => dialog.close("yes");
    element("no").onclick = () => dialog.close("no");
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
    dialog.returnValue = "no";
    dialog.showModal();
    element("no").focus();
  });
}

/** Forgets a key that the server does not accept, and asks for another. */
function refuseKey() {
  const wrong = key.get() !== "";
  about.needs_key = true;
  key.set("");
  element("key").ariaInvalid = String(wrong);
  element("key-error").textContent = wrong ? "This key is not one of the server's." : "";
  showAccess();
  element("key").focus();
}

/** Asks for a key, and disables what needs one, while there is none. */
function showAccess() {
  element("access").hidden = !isLocked();
  for (const id of NEED_A_KEY) element(id).disabled = isLocked();
}

async function speak() {
  stop();
  const mine = (speech = new Speech(settings.request));
  player.prepare(settings.model.sample_rate ?? USUAL_RATE);
  busy = true;
  waveform.clear();
  say("Waiting for the first audio …");
  show();
  try {
    await attempt(() =>
      mine.read(
        (rate) => speech === mine && player.open(rate, (sample) => mine.delay(sample)),
        (piece) => {
          if (speech !== mine) return;
          player.push(piece);
          say(progressLine(player.delay));
          waveform.push(piece);
          show();
        },
      ),
    );
  } finally {
    if (speech === mine) {
      busy = false;
      player.complete();
      say(mine.samples ? `${mine.seconds.toFixed(1)} s of speech${mine.whole ? "" : ", incomplete"}.` : "");
      waveform.draw();
      show();
    }
  }
  // By now its bundle is loaded, and the server knows more of it.
  if (settings.model.sample_rate === null && mine.whole) await attempt(async () => (settings.about = await fetchAbout()));
}

/** delay: seconds until playback. In steps, so that a screen reader does not count them all. */
function progressLine(delay) {
  if (delay < 1 || delay === Infinity) return "Speaking";
  const seconds = Math.ceil(delay / DELAY_STEP_SECONDS) * DELAY_STEP_SECONDS;
  return `This server is slower than real time; playback starts in about ${seconds} s.`;
}

function stop() {
  speech?.cancel();
  player.pause();
}

async function download() {
  const { format } = settings;
  if (format === "wav") {
    save(wavOf(speech.pieces, speech.rate), "speech.wav");
    return;
  }
  // The same seed makes the same samples, so they are spoken once more and encoded there.
  const button = element("download");
  button.disabled = true;
  try {
    const json = { ...speech.request, response_format: format, seed: Number(speech.seed) };
    save(await (await ask("v1/audio/speech", { json })).blob(), `speech.${format}`);
  } finally {
    show();
  }
}

/** Brings every control and figure up to date. */
function show() {
  const samples = speech?.samples ?? 0;
  const button = element("speak-button");
  button.classList.toggle("busy", busy);
  button.lastElementChild.textContent = busy ? "Stop" : "Speak";
  element("play").disabled = !samples;
  element("play").classList.toggle("busy", player.playing);
  element("play").lastElementChild.textContent = player.playing ? "Pause" : "Play";
  // In another format it would be spoken whole.
  element("download").disabled = !samples || busy || (settings.format !== "wav" && !speech.whole);
  element("download").textContent = `Download ${settings.format.toUpperCase()}`;
  element("first-audio").textContent = speech?.firstAudio ? `${speech.firstAudio.toFixed(2)} s` : "–";
  element("real-time-factor").textContent = speech?.realTimeFactor ? speech.realTimeFactor.toFixed(2) : "–";
  element("gaps").textContent = samples ? String(player.gaps) : "–";
  element("keep-seed").textContent = speech?.seed ?? "–";
  element("keep-seed").disabled = !speech?.seed;
  showPosition();
}

function showPosition() {
  const slider = element("position");
  const total = speech?.seconds ?? 0;
  const now = total ? Math.min(player.position / speech.rate, total) : 0;
  slider.ariaDisabled = String(!total);
  slider.ariaValueMax = total.toFixed(1);
  slider.ariaValueNow = now.toFixed(1);
  slider.ariaValueText = total ? `${now.toFixed(1)} of ${total.toFixed(1)} seconds` : "No speech yet";
  element("clock").textContent = total ? `${now.toFixed(1)} of ${total.toFixed(1)} s` : "0.0 s";
}

function follow() {
  show();
  waveform.draw();
  if (!player.playing) return;
  if (calm.matches) setTimeout(follow, 500);
  else requestAnimationFrame(follow);
}

function seek(seconds) {
  if (speech?.samples) player.playFrom(seconds * speech.rate);
}

function showPrograms() {
  const base = address("v1");
  const asked = request();
  // Without a text the server would refuse them.
  if (!asked.input.trim()) asked.input = SAMPLE_TEXT;
  element("curl").textContent = curlOf(asked, base, about.needs_key);
  element("python").textContent = pythonOf(asked, base, about.needs_key);
  element("key-variable").hidden = !about.needs_key;
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without https there is no clipboard; what is selected can be copied by hand.
    getSelection().selectAllChildren(element(button.id.replace("copy-", "")));
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function wire() {
  element("speak").addEventListener("submit", (event) => {
    event.preventDefault();
    if (busy) stop();
    else speak();
  });
  element("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (!busy && !isLocked()) element("speak").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !element("sure").open) stop();
  });
  element("play").addEventListener("click", () => (player.playing ? player.pause() : player.playFrom(player.position)));
  player.addEventListener("change", follow);
  element("download").addEventListener("click", () => attempt(download));
  element("keep-seed").addEventListener("click", () => {
    settings.seed = speech.seed;
    element("options").open = true;
    element("seed").focus();
  });
  element("position").addEventListener("click", (event) => {
    if (busy || !speech) return;
    const { left, width } = element("position").getBoundingClientRect();
    seek(((event.clientX - left) / width) * speech.seconds);
  });
  element("position").addEventListener("keydown", (event) => {
    const now = player.position / (speech?.rate ?? 1);
    const places = { ArrowLeft: now - SKIP_SECONDS, ArrowRight: now + SKIP_SECONDS, Home: 0, End: speech?.seconds - SKIP_SECONDS };
    if (!(event.key in places)) return;
    event.preventDefault();
    seek(places[event.key]);
  });
  for (const name of ["curl", "python"]) {
    element(`copy-${name}`).addEventListener("click", ({ target }) => copy(target, element(name).textContent));
  }
  element("reset").addEventListener("click", () => settings.reset());
  settings.addEventListener("change", () => {
    showPrograms();
    show();
  });
}

async function listAll() {
  try {
    await voices.list();
    await jobs.list();
  } finally {
    showAccess();
  }
}

async function fetchAbout() {
  return (await ask("v1/about")).json();
}

async function begin() {
  about = await fetchAbout();
  if (!localStorage.getItem(VISITED)) element("text").value ||= SAMPLE_TEXT;
  localStorage.setItem(VISITED, "yes");
  settings = new Settings(about);
  const page = { attempt, say, sure, model: () => settings.model, request };
  voices = new Voices(about, page);
  jobs = new Jobs(about, page);
  fill(element("voice"), [["default", "Default"]]);
  const { id, sample_rate: rate } = about.models[0];
  element("server-line").textContent = rate ? `${id} · ${rate / 1000} kHz` : id;
  element("access").addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(element("key").value.trim());
    attempt(async () => {
      await listAll();
      element("text").focus();
    });
  });
  // Wide windows have room for them next to the text.
  element("options").open = matchMedia("(min-width: 60rem)").matches;
  wire();
  show();
  showAccess();
  showPrograms();
  if (matchMedia("(pointer: coarse)").matches) {
    // No Ctrl key, and focus would open the on-screen keyboard.
    element("text-hint").remove();
  } else {
    element("text").focus({ preventScroll: true });
    if (element("text").value === SAMPLE_TEXT) element("text").select();
  }
  if (isLocked()) element("key").focus();
  else await listAll();
}

attempt(begin);
