// Requests to the server, with this tab's key. Errors carry the server's message.

const KEY = "voxcpm-coreml-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

/** A request that failed. `status` is 0 if the server did not answer. */
export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The absolute URL of a path; the server may be behind a reverse proxy's path prefix. */
export const absoluteUrl = (path) => new URL(path, document.baseURI).href;

/** Sends a request. Throws RequestError, or an AbortError if its signal was aborted. */
export async function fetchOk(path, { json, headers = {}, ...options } = {}) {
  // Such a key is invalid in a header, so it must be wrong.
  if (/[^\x20-\xff]/.test(key.get())) throw new RequestError("", 401);
  const sent = { ...headers };
  if (key.get()) sent.Authorization = `Bearer ${key.get()}`;
  if (json !== undefined) {
    sent["Content-Type"] = "application/json";
    options = { method: "POST", body: JSON.stringify(json), ...options };
  }
  let answer;
  try {
    answer = await fetch(absoluteUrl(path), { ...options, headers: sent });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("Cannot connect to the server.", 0);
  }
  if (!answer.ok) throw await requestError(answer);
  return answer;
}

/** Capitalizes the first letter. */
export const capitalize = (line) => line.charAt(0).toUpperCase() + line.slice(1);

async function requestError(answer) {
  let line = `The server responded with ${answer.status} ${answer.statusText}`.trim();
  try {
    line = (await answer.json()).error.message;
  } catch {
    // The response came from a proxy.
  }
  const wait = answer.headers.get("Retry-After");
  return new RequestError(wait ? `${line} (retry in ${wait} s)` : line, answer.status);
}
