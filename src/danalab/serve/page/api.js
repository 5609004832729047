// The server's API: what model it has, and answers as they are written.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The models of the server, with what is known of their runs.
export async function loadRuns(key) {
  const response = await request("v1/runs", { headers: headers(key) });
  if (!response.ok) throw await errorOf(response);
  return (await response.json()).runs;
}

// Yields {text, tokens}, {calculation}, {reason} and {usage}; a token is [text, probability, 0, alternatives]. Throws
// where the answer ends early, also when `signal` is aborted. An answer at the end of `messages` is continued.
export async function* answer(model, messages, settings, key, signal) {
  const body = {
    model,
    messages: settings.system.trim() ? [{ role: "system", content: settings.system }, ...messages] : messages,
    temperature: settings.temperature,
    top_p: settings.top_p,
    top_k: settings.top_k,
    max_tokens: settings.max_tokens,
    seed: settings.seed,
    truncation: "auto",
    logprobs: true,
    top_logprobs: 5,
    stream: true,
    stream_options: { include_usage: true },
  };
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await errorOf(response);
  let ended = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      ended = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message);
    if (chunk.usage) yield { usage: chunk.usage };
    for (const { delta, logprobs, finish_reason: reason } of chunk.choices) {
      if (delta.content) yield { text: delta.content, tokens: (logprobs?.content ?? []).map(compact) };
      if (delta.calculation) yield { calculation: delta.calculation };
      if (reason) yield { reason };
    }
  }
  if (!ended) throw new ApiError("The connection ended before the answer did.");
}

function compact({ token, logprob, top_logprobs: top }) {
  return [token, share(logprob), 0, top.map((each) => [each.token, share(each.logprob)])];
}

function share(logprob) {
  return Number(Math.exp(logprob).toPrecision(4)) || 0;
}

// `fetch`, with a sentence in place of the browser's own words.
async function request(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new ApiError("The server cannot be reached.");
  }
}

function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function errorOf(response) {
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // Not from our server: the status has to do.
  }
  return new ApiError(message, response.status);
}

// The data of server-sent events.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(() => ({ done: true })); // the connection broke
      if (done) return;
      buffer += value;
      for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
        const event = buffer.slice(0, end);
        if (event.startsWith("data: ")) yield event.slice(6);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
