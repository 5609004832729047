// The server's API: what model it has, and answers as they are written.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export async function loadModel(key) {
  const response = await request("v1/models", { headers: headers(key) });
  if (!response.ok) throw await errorOf(response);
  return (await response.json()).data[0];
}

// Yields {text}, {calculation}, {reason} and {usage}. Throws where the answer ends early, also when `signal` is aborted.
export async function* answer(messages, settings, key, signal) {
  const body = {
    messages: settings.system.trim() ? [{ role: "system", content: settings.system }, ...messages] : messages,
    temperature: settings.temperature,
    top_p: settings.top_p,
    max_tokens: settings.max_tokens,
    seed: settings.seed,
    truncation: "auto",
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
    for (const { delta, finish_reason: reason } of chunk.choices) {
      if (delta.content) yield { text: delta.content };
      if (delta.calculation) yield { calculation: delta.calculation };
      if (reason) yield { reason };
    }
  }
  if (!ended) throw new ApiError("The connection ended before the answer did.");
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
