// Code examples for the form's request.

const KEY_VARIABLE = "OPENAI_API_KEY";

/** request: the body of /v1/audio/speech. base: the URL of /v1. */
export function curlExample(request, base, needsKey) {
  return [
    // --fail: an error must not be saved as audio.
    `curl --fail ${quoted(`${base}/audio/speech`)}`,
    ...(needsKey ? [`-H "Authorization: Bearer $${KEY_VARIABLE}"`] : []),
    '-H "Content-Type: application/json"',
    `-d ${quoted(JSON.stringify(request))}`,
    `-o speech.${request.response_format}`,
  ].join(" \\\n  ");
}

/** The same with OpenAI's client, which reads the key from the environment. */
export function pythonExample(request, base, needsKey) {
  const known = ["model", "voice", "input", "instructions", "response_format", "speed"];
  const named = known.filter((name) => name in request);
  const others = Object.keys(request).filter((name) => !known.includes(name));
  const extra = others.map((name) => `${JSON.stringify(name)}: ${JSON.stringify(request[name])}`);
  return [
    "# pip install openai",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(base)}${needsKey ? "" : ', api_key="none"'})`,
    "speech = client.audio.speech.create(",
    // JSON strings and numbers are valid Python literals.
    ...named.map((name) => `    ${name}=${JSON.stringify(request[name])},`),
    ...(extra.length ? [`    extra_body={${extra.join(", ")}},`] : []),
    ")",
    `speech.write_to_file("speech.${request.response_format}")`,
  ].join("\n");
}

/** Quotes a word for the shell. */
function quoted(text) {
  return /^[\w.:/@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
