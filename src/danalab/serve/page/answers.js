// Answers that are being written: from the stream into the message and the storage. They go on whatever is shown.

import { answer } from "./api.js";
import { extent, loadMessage, save } from "./store.js";
import { asSent } from "./tree.js";

const LOCK = "danalab.answer.";
const WAIT = 5000; // milliseconds for another tab to let go of an answer
const SAVE_EVERY = 300; // milliseconds between two writes of one answer to the storage

// What `live` holds by the message's id: {message, conversation, control}.
export const live = new Map();

let listen = { changed: () => {}, ended: () => {} };

// Calls `changed(message)` at each piece, and `ended(message, error)` after the last.
export function listenToAnswers(listeners) {
  listen = listeners;
}

export function stop(id) {
  live.get(id)?.control.abort();
}

export function stopAll(conversation) {
  for (const each of live.values()) if (each.conversation.id === conversation.id) each.control.abort();
}

export function isWriting(conversation) {
  return [...live.values()].some((each) => each.conversation.id === conversation.id);
}

// Messages that another tab is writing.
export async function writtenElsewhere() {
  const { held = [] } = (await navigator.locks?.query()) ?? {};
  return new Set(held.map(({ name }) => name.replace(LOCK, "")).filter((id) => !live.has(id)));
}

// Writes `message`, the answer to the last of `path`; what it has already is continued. One tab writes it at a time.
export async function write(conversation, path, message, settings, key) {
  const control = new AbortController();
  live.set(message.id, { message, conversation, control });
  Object.assign(message, { state: "writing", error: undefined });
  let error = null;
  const work = async () => {
    const stored = await loadMessage(message.id);
    if (extent(stored) > extent(message)) Object.assign(message, stored); // another tab has gone on with it
    else error = await stream(conversation, path, message, settings, key, control);
  };
  try {
    // The page that wrote it before a reload may not have let go yet. There are locks by HTTPS and on this machine only.
    await (navigator.locks?.request(LOCK + message.id, { signal: AbortSignal.timeout(WAIT) }, work) ?? work());
  } catch {
    // Another tab writes it, and tells this one of each piece.
  }
  live.delete(message.id);
  listen.ended(message, error);
}

// Resolves to the error that it ended with, or null.
async function stream(conversation, path, message, settings, key, control) {
  const isContinued = Boolean(message.content || message.sums?.length);
  const started = performance.now();
  let reason = "";
  let error = null;
  let first = 0;
  let saved = 0;
  listen.changed(message);
  await save(conversation, [message]);
  try {
    const sent = asSent(isContinued ? [...path, message] : path);
    for await (const piece of answer(message.model || null, sent, settings, key, control.signal)) {
      const at = message.content.length;
      if (piece.text) {
        message.content += piece.text;
        (message.tokens ??= []).push(...piece.tokens.map(([text, chance, , top]) => [text, chance, at, top]));
      }
      if (piece.calculation) {
        const { expression, result } = piece.calculation;
        (message.sums ??= []).push({ expression, result, at });
      }
      if (piece.reason) reason = piece.reason;
      if (piece.usage) message.stats = statistics(piece.usage, performance.now(), started, first, settings);
      first ||= performance.now();
      listen.changed(message);
      if (performance.now() - saved > SAVE_EVERY) {
        saved = performance.now();
        save(conversation, [message]);
      }
    }
  } catch (caught) {
    error = caught;
  }
  if (control.signal.aborted) message.state = "stopped";
  else if (error) Object.assign(message, { state: "failed", error: error.message });
  else message.state = reason === "length" ? "cut" : "done";
  conversation.updated = Date.now();
  await save(conversation, [message]);
  return error;
}

// Times in seconds. The rate counts from the first token on, and only where that was long enough to be measured.
function statistics(usage, now, started, first, { temperature, seed, max_tokens: limit }) {
  const tokens = usage.completion_tokens;
  const writing = (now - first) / 1000;
  const rate = tokens > 8 && writing > 0.2 ? (tokens - 1) / writing : null;
  const times = { first: (first - started) / 1000, seconds: (now - started) / 1000, rate };
  return { prompt: usage.prompt_tokens, tokens, limit, ...times, temperature, seed };
}
