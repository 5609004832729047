// Conversations as files: all of them with their branches, for another browser; or one as a line of training data, which
// `danalab sft --data` and `/load` in the terminal read.

import { isConversation, isMessage } from "./store.js";
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

// {conversations, messages} of a file's text. Throws an Error for what is neither of the two forms.
export function readArchive(text) {
  let found = null;
  try {
    found = JSON.parse(text);
  } catch {
    // Several lines, perhaps.
  }
  if (found?.format === FORMAT && Array.isArray(found.conversations) && Array.isArray(found.messages)) {
    const conversations = found.conversations.filter(isConversation);
    const known = new Set(conversations.map(({ id }) => id));
    return { conversations, messages: found.messages.filter((each) => isMessage(each) && known.has(each.conversation)) };
  }
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new Error("the file is empty");
  const read = { conversations: [], messages: [] };
  for (const [place, line] of lines.entries()) {
    const made = fromTraining(line);
    if (!made) throw new Error(`line ${place + 1} is no conversation`);
    read.conversations.push(made.conversation);
    read.messages.push(...made.messages);
  }
  return read;
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
        if (part.type === "text") message.content += part.text;
        else if (part.type === "python") sums.push({ expression: part.text, result: "", at: message.content.length });
        else if (part.type === "python_output" && sums.length) sums.at(-1).result = part.text;
        else return null;
      }
      if (sums.length) message.sums = sums;
      if (!isMessage(message)) return null;
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
