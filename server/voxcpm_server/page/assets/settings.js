// The form's state as a speech request.

const NUMBERS = ["speed", "cfg_value", "inference_timesteps"];

export class Settings extends EventTarget {
  #about;

  /** about: the server's /about. */
  constructor(about) {
    super();
    this.#about = about;
    fillOptions(this.#field("model"), about.models.map(({ id }) => [id, id]));
    this.#field("model-field").hidden = about.models.length < 2;
    const formats = about.formats.map((name) => [name, name.toUpperCase()]);
    fillOptions(this.#field("format"), formats);
    this.reset();
    document.addEventListener("input", ({ target }) => target.form?.id === "speak" && this.#changed());
    // Unfold the section that hides an invalid number.
    for (const fold of [this.#field("options"), this.#field("advanced")]) {
      fold.addEventListener("invalid", () => (fold.open = true), true);
    }
  }

  /** Facts about the selected bundle. */
  get model() {
    return this.#about.models.find(({ id }) => id === this.#field("model").value);
  }

  /** Refreshes /about, which has more facts once a bundle is loaded. */
  set about(about) {
    this.#about = about;
    this.#changed();
  }

  get format() {
    return this.#field("format").value;
  }

  set seed(value) {
    this.#field("seed").value = value;
    this.#changed();
  }

  /** The body of /v1/audio/speech without the format; defaults are omitted. */
  get request() {
    const request = { model: this.model.id, input: this.#field("text").value, voice: this.#field("voice").value || "default" };
    const style = this.#field("instructions").value.trim();
    if (style && !this.#field("instructions-field").hidden) request.instructions = style;
    for (const name of NUMBERS) {
      const value = this.#field(name).valueAsNumber;
      if (Number.isFinite(value) && value !== this.#about.options[name].default) request[name] = value;
    }
    if (this.#field("fast").checked) {
      request.fast = true;
      delete request.inference_timesteps;
    }
    if (this.#field("seed").value) request.seed = this.#field("seed").valueAsNumber;
    return request;
  }

  /** Resets everything except text, voice and model. */
  reset() {
    for (const name of NUMBERS) {
      const { min, max, default: value } = this.#about.options[name];
      Object.assign(this.#field(name), { min, max, value });
    }
    this.#field("seed").value = this.#field("instructions").value = "";
    this.#field("fast").checked = false;
    this.#field("format").value = "wav";
    this.#changed();
  }

  #changed() {
    const { characters, job_characters: jobCharacters = 0 } = this.#about.limits;
    // Code points, as on the server.
    const length = [...this.#field("text").value].length;
    this.#field("characters").value = `${length.toLocaleString("en")} of ${characters.toLocaleString("en")}`;
    this.#field("characters").classList.toggle("too-many", length > characters);
    this.#field("job-offer").hidden = !this.#about.jobs || length <= characters || length > jobCharacters;
    this.#field("speed-shown").value = `${this.#field("speed").valueAsNumber} ×`;
    this.#field("cfg_value-shown").value = this.#field("cfg_value").valueAsNumber.toFixed(1);
    this.#field("instructions-field").hidden = this.model.takes_instructions === false;
    this.dispatchEvent(new Event("change"));
  }

  #field(name) {
    return document.getElementById(name);
  }
}

/** Fills a select element. entries: [value, text] pairs. */
export function fillOptions(list, entries) {
  list.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
}
