// The server's API.

class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The response to a request; throws a sentence for people where it fails.
async function respond(path, options, key) {
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...(options.body && { "content-type": "application/json" }) };
  const response = await fetch(path, { ...options, headers }).catch(() => {
    throw new ApiError("The server cannot be reached.");
  });
  if (response.ok) return response;
  const told = await response.json().catch(() => ({})); // not from our server: the status has to do
  throw new ApiError(told.error?.message ?? `The server answered with status ${response.status}.`, response.status);
}

export async function request(path, options, key) {
  return (await respond(path, options, key)).json();
}

export function ask(path, body, key) {
  return request(path, { method: "POST", body: JSON.stringify(body) }, key);
}

// Yields {text} and {reason}. Throws where the answer ends early, also when `signal` is aborted. An answer at the end of
// `messages` is continued.
export async function* answer(messages, settings, key, signal) {
  const { model, system, temperature, top_p, top_k, max_tokens, seed } = settings;
  const said = messages.map(({ role, content }) => ({ role, content }));
  if (system.trim() && said[0].role !== "system") said.unshift({ role: "system", content: system });
  const sampling = { temperature, top_p, top_k, max_tokens, seed, truncation: "auto" };
  const body = JSON.stringify({ model: model || null, messages: said, ...sampling, stream: true });
  const response = await respond("v1/chat/completions", { method: "POST", body, signal }, key);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const { error, choices } = JSON.parse(data);
    if (error) throw new ApiError(error.message);
    for (const { delta, finish_reason: reason } of choices) yield { text: delta.content, reason };
  }
  throw new ApiError("The connection ended before the answer did.");
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
