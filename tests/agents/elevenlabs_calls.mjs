// ElevenLabs' official JavaScript SDK calls a server: elevenlabs_calls.mjs FOLDER URL KEY VOICE. Prints what it got as JSON.
// FOLDER: where npm has installed the SDK, which an import would search for next to this file only.

import { createRequire } from "node:module";

const [folder, baseUrl, apiKey, voice] = process.argv.slice(2);
const { ElevenLabsClient } = createRequire(`${folder}/`)("@elevenlabs/elevenlabs-js");
const client = new ElevenLabsClient({ baseUrl, apiKey, maxRetries: 0 });
const said = { text: "Hello there.", modelId: "eleven_flash_v2_5", seed: 7 };

async function length(stream) {
  let bytes = 0;
  for await (const part of stream) bytes += part.length;
  return bytes;
}

async function characters(stream) {
  const found = [];
  for await (const part of stream) found.push(...(part.alignment?.characters ?? []));
  return found;
}

const speech = client.textToSpeech;
const told = {
  convert: await length(await speech.convert(voice, { ...said, outputFormat: "pcm_24000" })),
  stream: await length(await speech.stream(voice, { ...said, outputFormat: "ulaw_8000" })),
  timestamps: (await speech.convertWithTimestamps(voice, said)).alignment.characters,
  streamed: await characters(await speech.streamWithTimestamps(voice, said)),
  voices: (await client.voices.getAll()).voices.map((one) => one.voiceId),
  found: (await client.voices.search({ search: voice })).voices.map((one) => one.voiceId),
  voice: (await client.voices.get(voice)).name,
  models: (await client.models.list()).map((one) => one.modelId),
};
console.log(JSON.stringify(told));
