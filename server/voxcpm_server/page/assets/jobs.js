// Jobs: submit, poll, play, download, delete.

import { capitalize, fetchOk } from "./server.js";
import { save } from "./wav.js";

const PATH = "v1/audio/jobs";
const POLL_MILLISECONDS = 1000;
const element = (id) => document.getElementById(id);

export class Jobs {
  #page;
  #offered;
  #jobs = new Map();
  #timer = null;

  /** page: as for Voices, plus request(), the form's speech request. */
  constructor(about, page) {
    this.#page = page;
    this.#offered = about.jobs;
    element("jobs").hidden = !about.jobs;
    for (const id of ["submit-job", "offered-job"]) {
      element(id).addEventListener("click", () => {
        if (element("speak").reportValidity()) page.attempt(() => this.#submit());
      });
    }
    document.addEventListener("visibilitychange", () => document.hidden || page.attempt(() => this.list(), { background: true }));
  }

  /** Refreshes the list, then polls while a job is unfinished and the page is visible. */
  async list() {
    if (!this.#offered) return;
    clearTimeout(this.#timer);
    const { data } = await (await fetchOk(PATH)).json();
    const gone = new Set(this.#jobs.keys());
    for (const job of data) {
      gone.delete(job.id);
      if (!this.#jobs.has(job.id)) this.#jobs.set(job.id, this.#entry(job.id));
      show(this.#jobs.get(job.id), job);
    }
    for (const id of gone) {
      const { item, player } = this.#jobs.get(id);
      URL.revokeObjectURL(player.src);
      item.remove();
      this.#jobs.delete(id);
    }
    // In the server's order. Move only what must move, as a moved entry loses focus.
    data.forEach(({ id }, index) => {
      const { item } = this.#jobs.get(id);
      const list = element("job-list");
      if (list.children[index] !== item) list.insertBefore(item, list.children[index] ?? null);
    });
    const unfinished = data.some(({ state }) => state !== "done" && state !== "failed");
    if (unfinished && !document.hidden) {
      this.#timer = setTimeout(() => this.#page.attempt(() => this.list(), { background: true }), POLL_MILLISECONDS);
    }
  }

  async #submit() {
    await fetchOk(PATH, { json: this.#page.request() });
    this.#page.say("Job submitted.");
    await this.list();
  }

  async #audio(id) {
    return (await fetchOk(`${PATH}/${encodeURIComponent(id)}/audio`)).blob();
  }

  /** Replaces the button by a player. */
  async #play(id, { play, player }) {
    play.disabled = true;
    try {
      player.src = URL.createObjectURL(await this.#audio(id));
      player.hidden = false;
      play.hidden = true;
    } finally {
      play.disabled = false;
    }
  }

  async #delete(id) {
    if (!(await this.#page.sure("Delete this job and its speech?"))) return;
    await fetchOk(`${PATH}/${encodeURIComponent(id)}`, { method: "DELETE" });
    await this.list();
    element("submit-job").focus();
    this.#page.say("Job deleted.");
  }

  #entry(id) {
    const entry = { item: document.createElement("li"), line: document.createElement("p") };
    entry.bar = document.createElement("progress");
    entry.text = document.createElement("p");
    entry.player = new Audio();
    Object.assign(entry.player, { controls: true, autoplay: true, hidden: true });
    entry.play = button("Play", () => this.#page.attempt(() => this.#play(id, entry)));
    entry.download = button("Download", () =>
      this.#page.attempt(async () => save(await this.#audio(id), `${id}.${entry.format}`)),
    );
    const remove = button("Delete", () => this.#page.attempt(() => this.#delete(id)));
    const row = document.createElement("div");
    row.className = "row";
    row.append(entry.play, entry.download, remove);
    entry.line.className = "hint";
    entry.text.id = `job-${id}`;
    for (const each of [entry.bar, entry.player]) each.setAttribute("aria-labelledby", entry.text.id);
    for (const each of [entry.play, entry.download, remove]) each.setAttribute("aria-describedby", entry.text.id);
    entry.item.append(entry.text, entry.line, entry.bar, entry.player, row);
    return entry;
  }
}

/** Updates a job's entry. */
function show(entry, job) {
  entry.format = job.response_format;
  entry.text.textContent ||= job.excerpt + (job.excerpt.length < job.characters ? " …" : "");
  const facts = [
    new Date(job.created_at * 1000).toLocaleString(),
    job.voice,
    job.response_format.toUpperCase(),
    `${job.characters.toLocaleString("en")} characters`,
    description(job),
  ];
  const line = facts.join(" · ");
  if (entry.line.textContent !== line) entry.line.textContent = line;
  entry.bar.hidden = job.state !== "running";
  // Without a value the bar is indeterminate.
  if (job.segments > 1) Object.assign(entry.bar, { max: job.segments, value: job.segments_done });
  entry.play.disabled = entry.download.disabled = job.state !== "done";
  // Raw samples have no header that a browser could read.
  entry.play.hidden = !entry.player.hidden || job.response_format === "pcm";
}

function description({ state, error, audio_seconds: seconds, remaining_seconds: left }) {
  if (state === "failed" || state === "waiting") return error ? capitalize(error.message) : state;
  if (state === "queued") return "waiting";
  const spoken = `${seconds.toFixed(1)} s of speech`;
  if (state === "done") return spoken;
  return left === null ? `${spoken} so far` : `${spoken} so far, about ${Math.ceil(left)} s left`;
}

function button(text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}
