// The page: what its controls do. Text of users and servers is only ever set as text.

import { address, ask, key, Refusal } from "./server.js";
import { Jobs } from "./jobs.js";
import { Player } from "./player.js";
import { curlOf, pythonOf } from "./programs.js";
import { fill, Settings } from "./settings.js";
import { Speech } from "./speech.js";
import { Voices } from "./voices.js";
import { save, wavOf } from "./wav.js";
import { Waveform } from "./waveform.js";

const SKIP_SECONDS = 1;
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

function say(line) {
  element("status").textContent = line;
}

/** Does some work and shows the one line of its error. What is not done for the user keeps the line that is there. */
async function attempt(work, { unasked = false } = {}) {
  if (!unasked) element("error").hidden = true;
  try {
    await work();
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) askForKey();
    element("error").textContent = error.message;
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

function askForKey() {
  element("access").hidden = false;
  element("key").focus();
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
        (rate) => speech === mine && player.open(rate),
        (piece) => {
          if (speech !== mine) return;
          if (mine.samples === piece.length) say("Speaking");
          player.push(piece);
          waveform.push(piece);
          show();
        },
      ),
    );
  } finally {
    if (speech === mine) {
      busy = false;
      player.complete();
      say(mine.samples ? `${mine.seconds.toFixed(1)} s of speech${mine.whole ? "" : ", not all of it"}.` : "");
      waveform.draw();
      show();
    }
  }
  // By now its bundle is loaded, and the server knows more of it.
  if (settings.model.sample_rate === null && mine.whole) await attempt(async () => (settings.about = await told()));
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
  slider.ariaValueText = total ? `${now.toFixed(1)} of ${total.toFixed(1)} seconds` : "nothing spoken yet";
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
  element("curl").textContent = curlOf(request(), base, about.needs_key);
  element("python").textContent = pythonOf(request(), base, about.needs_key);
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
    if (!busy) element("speak").requestSubmit();
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

async function enter() {
  await voices.list();
  await jobs.list();
  showPrograms();
}

async function told() {
  return (await ask("v1/about")).json();
}

async function begin() {
  about = await told();
  settings = new Settings(about);
  const page = { attempt, say, sure, model: () => settings.model, request };
  voices = new Voices(about, page);
  jobs = new Jobs(about, page);
  fill(element("voice"), [["default", "The model’s own"]]);
  const { id, sample_rate: rate } = about.models[0];
  element("server-line").textContent = rate ? `${id} · ${rate / 1000} kHz` : id;
  element("access").addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(element("key").value.trim());
    attempt(async () => {
      await enter();
      element("access").hidden = true;
      element("text").focus();
    });
  });
  // Beside the text there is room for them.
  element("options").open = matchMedia("(min-width: 60rem)").matches;
  wire();
  show();
  showPrograms();
  element("text").focus({ preventScroll: true });
  if (about.needs_key && !key.get()) askForKey();
  else await enter();
}

attempt(begin);
