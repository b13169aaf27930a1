// The page's controls. Text from users and the server is only ever set as textContent.

import { absoluteUrl, capitalize, fetchOk, key, RequestError } from "./server.js";
import { Jobs } from "./jobs.js";
import { Player } from "./player.js";
import { curlExample, pythonExample } from "./programs.js";
import { fillOptions, Settings } from "./settings.js";
import { Speech } from "./speech.js";
import { Voices } from "./voices.js";
import { encodeWav, save } from "./wav.js";
import { Waveform } from "./waveform.js";

const SKIP_SECONDS = 1;
const SAMPLE_TEXT = "Welcome! Whatever you write here is spoken by this server. Change the text, choose a voice, and press Speak.";
const KEY_REQUIRED = ["speak-button", "preview", "new-voice", "submit-job", "offered-job"];
const DELAY_STEP_SECONDS = 5;
const VISITED = "voxcpm-coreml-visited";
const TYPED = "voxcpm-coreml-text";
// Sample rate to start with if the model's is still unknown.
const DEFAULT_RATE = 44_100;
const element = (id) => document.getElementById(id);
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

const player = new Player();
let about;
let settings;
let voices;
let jobs;
let speech = null;
/** Whether speech is still being received. */
let busy = false;

const waveform = new Waveform(element("waveform"), () => ({
  played: player.position,
  samples: player.samples,
  rate: speech?.rate ?? 1,
  open: busy,
}));

/** The form's speech request, including its format. */
const request = () => ({ ...settings.request, response_format: settings.format });

/** Whether the server requires a key that this tab does not have. */
const needsKey = () => about.needs_key && !key.get();

function say(line) {
  if (element("status").textContent !== line) element("status").textContent = line;
}

/** Runs some work and shows its error. Background work does not clear an earlier error. */
async function attempt(work, { background = false } = {}) {
  if (!background) element("error").hidden = true;
  try {
    await work();
  } catch (error) {
    if (error instanceof RequestError && error.status === 401) {
      rejectKey();
      return;
    }
    element("error").textContent = capitalize(error.message);
    element("error").hidden = false;
    element("error").scrollIntoView({ block: "nearest" });
  }
}

/** Shows a confirmation dialog; resolves to whether the user confirmed. */
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

/** Clears a rejected key and prompts for another. */
function rejectKey() {
  const wrong = key.get() !== "";
  about.needs_key = true;
  key.set("");
  element("key").ariaInvalid = String(wrong);
  element("key-error").textContent = wrong ? "The server rejected this key." : "";
  showAccess();
  element("key").focus();
}

/** While a key is missing, prompts for one and disables the controls that need it. */
function showAccess() {
  element("access").hidden = !needsKey();
  for (const id of KEY_REQUIRED) element(id).disabled = needsKey();
}

async function speak() {
  stop();
  const current = (speech = new Speech(settings.request));
  player.prepare(settings.model.sample_rate ?? DEFAULT_RATE);
  busy = true;
  waveform.clear();
  element("words").replaceChildren();
  say("Waiting for the first audio …");
  show();
  try {
    await attempt(() =>
      current.read(
        (rate) => speech === current && player.open(rate, (sample) => current.delay(sample)),
        (piece) => {
          if (speech !== current) return;
          player.push(piece);
          say(progressLine(player.delay));
          waveform.push(piece);
          show();
        },
        (words) => speech === current && element("words").append(...words.flatMap((word) => [wordElement(word), " "])),
      ),
    );
  } finally {
    if (speech === current) {
      busy = false;
      player.complete();
      say(current.samples ? `${current.seconds.toFixed(1)} s of speech${current.whole ? "" : ", incomplete"}.` : "");
      waveform.draw();
      show();
    }
  }
  // Its bundle is loaded by now, so the server knows its sample rate.
  if (settings.model.sample_rate === null && current.whole) await attempt(async () => (settings.about = await fetchAbout()));
}

/** delay: seconds until playback, rounded so that a screen reader does not announce each second. */
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
    save(encodeWav(speech.pieces, speech.rate), "speech.wav");
    return;
  }
  // The same seed gives the same samples, so request them again in this format.
  const button = element("download");
  button.disabled = true;
  try {
    const json = { ...speech.request, response_format: format, seed: Number(speech.seed) };
    save(await (await fetchOk("v1/audio/speech", { json })).blob(), `speech.${format}`);
  } finally {
    show();
  }
}

/** Updates every control and figure. */
function show() {
  const samples = speech?.samples ?? 0;
  const button = element("speak-button");
  button.classList.toggle("busy", busy);
  button.lastElementChild.textContent = busy ? "Stop" : "Speak";
  element("play").disabled = !samples;
  element("play").classList.toggle("busy", player.playing);
  element("play").lastElementChild.textContent = player.playing ? "Pause" : "Play";
  // Another format would need the whole speech again.
  element("download").disabled = !samples || busy || (settings.format !== "wav" && !speech.whole);
  const outdated = Boolean(samples) && speech.request.input !== element("text").value;
  element("result").classList.toggle("outdated", outdated);
  element("outdated").hidden = !outdated;
  element("download").textContent = `Download ${settings.format.toUpperCase()}${outdated ? " of the earlier text" : ""}`;
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
  markWord(now);
  element("clock").textContent = total ? `${now.toFixed(1)} of ${total.toFixed(1)} s` : "0.0 s";
}

function wordElement({ word }) {
  const made = document.createElement("span");
  made.textContent = word;
  return made;
}

/** Marks the word that is said at this time. */
function markWord(seconds) {
  const isSaid = ({ start_ms: start, end_ms: end }) => start <= 1000 * seconds && 1000 * seconds < end;
  const index = player.samples ? speech.words.findLastIndex(isSaid) : -1;
  const word = element("words").children[index];
  const marked = element("words").querySelector(".said");
  if (word === marked) return;
  marked?.classList.remove("said");
  word?.classList.add("said");
}

function follow() {
  show();
  waveform.draw();
  if (!player.playing) return;
  if (reducedMotion.matches) setTimeout(follow, 500);
  else requestAnimationFrame(follow);
}

function seek(seconds) {
  if (speech?.samples) player.playFrom(seconds * speech.rate);
}

function showPrograms() {
  const base = absoluteUrl("v1");
  const body = request();
  // The server would reject an empty text.
  if (!body.input.trim()) body.input = SAMPLE_TEXT;
  element("curl").textContent = curlExample(body, base, about.needs_key);
  element("python").textContent = pythonExample(body, base, about.needs_key);
  element("key-variable").hidden = !about.needs_key;
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // The clipboard needs HTTPS; select the text so that the user can copy it.
    getSelection().selectAllChildren(element(button.id.replace("copy-", "")));
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function addListeners() {
  element("speak").addEventListener("submit", (event) => {
    event.preventDefault();
    if (busy) stop();
    else speak();
  });
  element("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (!busy && !needsKey()) element("speak").requestSubmit();
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
    sessionStorage.setItem(TYPED, element("text").value);
  });
}

async function refreshLists() {
  try {
    await voices.list();
    await jobs.list();
  } finally {
    showAccess();
  }
}

async function fetchAbout() {
  return (await fetchOk("v1/about")).json();
}

async function begin() {
  about = await fetchAbout();
  element("text").value ||= sessionStorage.getItem(TYPED) ?? (localStorage.getItem(VISITED) ? "" : SAMPLE_TEXT);
  localStorage.setItem(VISITED, "yes");
  settings = new Settings(about);
  const page = { attempt, say, sure, model: () => settings.model, request };
  voices = new Voices(about, page);
  jobs = new Jobs(about, page);
  fillOptions(element("voice"), [["default", "Default"]]);
  const { id, sample_rate: rate } = about.models[0];
  element("server-line").textContent = rate ? `${id} · ${rate / 1000} kHz` : id;
  element("access").addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(element("key").value.trim());
    attempt(async () => {
      await refreshLists();
      element("text").focus();
    });
  });
  // Wide windows show the options next to the text.
  element("options").open = matchMedia("(min-width: 60rem)").matches;
  addListeners();
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
  if (needsKey()) element("key").focus();
  else await refreshLists();
}

attempt(begin);
