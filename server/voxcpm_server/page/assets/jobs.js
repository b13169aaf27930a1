// Jobs: submit, poll, download, delete.

import { capitalize, fetchOk, pathSegment } from "./server.js";
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
    element("submit-job").addEventListener("click", () => {
      if (element("speak").reportValidity()) page.attempt(() => this.#submit());
    });
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
      this.#jobs.get(id).item.remove();
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

  async #save(id, format) {
    const answer = await fetchOk(`${PATH}/${pathSegment(id)}/audio`);
    save(await answer.blob(), `${id}.${format}`);
  }

  async #delete(id) {
    if (!(await this.#page.sure("Delete this job and its speech?"))) return;
    await fetchOk(`${PATH}/${pathSegment(id)}`, { method: "DELETE" });
    await this.list();
    element("submit-job").focus();
    this.#page.say("Job deleted.");
  }

  #entry(id) {
    const entry = { item: document.createElement("li"), line: document.createElement("p") };
    entry.bar = document.createElement("progress");
    entry.download = button("Download", () => this.#page.attempt(() => this.#save(id, entry.format)));
    const remove = button("Delete", () => this.#page.attempt(() => this.#delete(id)));
    const row = document.createElement("div");
    row.className = "row";
    row.append(entry.download, remove);
    entry.line.id = `job-${id}`;
    entry.bar.setAttribute("aria-labelledby", entry.line.id);
    for (const each of [entry.download, remove]) each.setAttribute("aria-describedby", entry.line.id);
    entry.item.append(entry.line, entry.bar, row);
    return entry;
  }
}

/** Updates a job's entry. */
function show(entry, job) {
  entry.format = job.response_format;
  const line = `${new Date(job.created_at * 1000).toLocaleString()} · ${job.characters.toLocaleString("en")} characters · ${description(job)}`;
  if (entry.line.textContent !== line) entry.line.textContent = line;
  entry.bar.hidden = job.state !== "running";
  // Without a value the bar is indeterminate.
  if (job.segments > 1) Object.assign(entry.bar, { max: job.segments, value: job.segments_done });
  entry.download.disabled = job.state !== "done";
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
