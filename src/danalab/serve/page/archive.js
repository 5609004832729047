// Conversations as files: all of them with their branches, for another browser; or one as a line of training data, which
// `danalab sft --data` and `/load` in the terminal read.

import { CONVERSATION, fault, MESSAGE } from "./store.js";
import { newConversation, newMessage } from "./tree.js";

const FORMAT = "danalab-conversations";

export function archiveText(conversations, messages) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations, messages });
}

// One path as {"messages": [...]}; calculations are parts, as the model is trained on them.
export function trainingLine(path, system = "") {
  const messages = path.filter(({ content, sums }) => content.trim() || sums?.length).map(({ role, content, sums }) => ({
    role,
    content: sums?.length ? parts(content, sums) : content,
  }));
  if (system.trim()) messages.unshift({ role: "system", content: system });
  return `${JSON.stringify({ messages })}\n`;
}

function parts(content, sums) {
  const found = [];
  let done = 0;
  const text = (end) => {
    if (end > done || end === undefined) found.push({ type: "text", text: content.slice(done, end) });
    done = Math.max(done, end ?? done);
  };
  for (const { expression, result, at } of [...sums].sort((a, b) => a.at - b.at)) {
    text(at);
    found.push({ type: "python", text: expression }, { type: "python_output", text: result });
  }
  text();
  return found.filter((part) => part.type !== "text" || part.text);
}

// {conversations, messages} of a file's text. Throws an Error that names the first fault.
export function readArchive(text) {
  let found = null;
  try {
    found = JSON.parse(text);
  } catch {
    // Several lines, perhaps.
  }
  if (found?.format === FORMAT) return checked(found);
  const lines = found?.messages ? [text] : text.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new Error("the file is empty");
  const read = { conversations: [], messages: [] };
  for (const [place, line] of lines.entries()) {
    const made = fromTraining(line);
    if (!made) throw new Error(`line ${place + 1} is no conversation; it must be {"messages": [{"role": "user", "content": ...}, ...]}`);
    read.conversations.push(made.conversation);
    for (const each of made.messages) read.messages.push(each);
  }
  return read;
}

// The same with no more than the known fields.
function checked(found) {
  const read = { conversations: listOf(found, "conversations", CONVERSATION), messages: listOf(found, "messages", MESSAGE) };
  const known = new Set(read.conversations.map(({ id }) => id));
  const byId = new Map(read.messages.map((each) => [each.id, each]));
  const sound = new Set();
  for (const [place, message] of read.messages.entries()) {
    if (!known.has(message.conversation)) throw new Error(`messages[${place}].conversation is ${JSON.stringify(message.conversation)}; it must be one of the file`);
    const trail = new Set();
    for (let each = message; each && !sound.has(each); each = byId.get(each.parent)) {
      if (trail.has(each)) throw new Error(`messages[${place}] is an answer to itself; parents must lead to a first message`);
      trail.add(each);
    }
    for (const each of trail) sound.add(each);
  }
  return read;
}

function listOf(found, name, fields) {
  if (!Array.isArray(found[name])) throw new Error(`${name} is ${typeof found[name]}; it must be a list`);
  const seen = new Set();
  return found[name].map((value, place) => {
    const wrong = fault(value, fields) || (seen.has(value.id) ? `.id is ${JSON.stringify(value.id)} once more; it must differ` : "");
    if (wrong) throw new Error(`${name}[${place}]${wrong}`);
    seen.add(value.id);
    return Object.fromEntries(Object.keys(fields).map((field) => [field, value[field]]));
  });
}

// Of what a file has, that which is to be stored beside messages that are known: they stay, and one of another conversation
// keeps its id. `known`: the conversations of ids.
export function besides({ conversations, messages }, known) {
  const owners = new Map(known);
  for (const each of messages) if (!owners.has(each.id)) owners.set(each.id, each.conversation);
  const own = (conversation, id) => (!owners.has(id) || owners.get(id) === conversation ? id : `${conversation}/${id}`);
  const renamed = messages.map((each) => ({ ...each, id: own(each.conversation, each.id), parent: own(each.conversation, each.parent) }));
  const changed = Date.now();
  return {
    conversations: conversations.map((each) => ({ ...each, leaf: own(each.id, each.leaf) ?? null, deleted: false, changed })),
    messages: renamed.filter(({ id }) => !known.has(id)),
  };
}

function fromTraining(line) {
  try {
    const conversation = newConversation();
    const messages = [];
    for (const { role, content } of JSON.parse(line).messages) {
      if (role === "system") continue; // the page has one for all conversations
      const message = newMessage(conversation, messages.at(-1)?.id ?? null, role);
      const sums = [];
      for (const part of typeof content === "string" ? [{ type: "text", text: content }] : content) {
        if (typeof part.text !== "string") return null;
        if (part.type === "text") message.content += part.text;
        else if (part.type === "python") sums.push({ expression: part.text, result: "", at: message.content.length });
        else if (part.type === "python_output" && sums.length) sums.at(-1).result = part.text;
        else return null;
      }
      if (sums.length) message.sums = sums;
      if (fault(message, MESSAGE)) return null;
      messages.push(message);
    }
    if (messages[0]?.role !== "user") return null;
    conversation.leaf = messages.at(-1).id;
    conversation.title = titleOf(messages[0].content);
    return { conversation, messages };
  } catch {
    return null;
  }
}

export function titleOf(text) {
  return text.replace(/\s+/g, " ").trim().slice(0, 60);
}
