// Requests to the server, with this tab's key; an error is the server's own line.

const KEY = "voxcpm-coreml-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

/** A request that failed. `status` is 0 if the server did not answer. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The whole address of a path of this server, which may lie in a folder of a reverse proxy's. */
export const address = (path) => new URL(path, document.baseURI).href;

/** The answer to a request. Throws Refusal, or an AbortError if its signal was aborted. */
export async function ask(path, { json, headers = {}, ...options } = {}) {
  // No header can carry such a key, so no server has it.
  if (/[^\x20-\xff]/.test(key.get())) throw new Refusal("", 401);
  const sent = { ...headers };
  if (key.get()) sent.Authorization = `Bearer ${key.get()}`;
  if (json !== undefined) {
    sent["Content-Type"] = "application/json";
    options = { method: "POST", body: JSON.stringify(json), ...options };
  }
  let answer;
  try {
    answer = await fetch(address(path), { ...options, headers: sent });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server cannot be reached.", 0);
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/** The part of a path that a name is. */
export const part = encodeURIComponent;

/** A line that begins in upper case. */
export const sentence = (line) => line.charAt(0).toUpperCase() + line.slice(1);

async function refusal(answer) {
  let line = `The server answered ${answer.status} ${answer.statusText}`.trim();
  try {
    line = (await answer.json()).error.message;
  } catch {
    // Not from this server: a proxy in between has answered.
  }
  const wait = answer.headers.get("Retry-After");
  return new Refusal(wait ? `${line} (retry in ${wait} s)` : line, answer.status);
}
