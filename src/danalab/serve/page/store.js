// What this browser keeps: conversations and messages in IndexedDB, settings in localStorage, the server's key until the
// tab closes. A message is a record of its own whose text only grows, and a tab stores none but those that it writes, so no
// tab undoes what another has done. What is read back is checked: other pages' data or a full storage must not break the page.

const OLD = "danalab.conversations"; // of an earlier version, in localStorage
const SETTINGS = "danalab.settings";
const KEY = "danalab.key";
const LEFT = "danalab.left";

export const DEFAULTS = {
  system: "", temperature: 0.8, top_p: 1, top_k: null, max_tokens: null, seed: null, theme: "auto", model: "",
};

const memory = { conversations: new Map(), messages: new Map() }; // where the browser has no storage for us
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("danalab") : null;
const database = openDatabase();
let trouble = () => {};

// Calls `changed(ids, messages)` when another tab has changed conversations (messages undefined: they are to be read), and
// `failed` when nothing can be stored.
export function watch(changed, failed) {
  if (channel) channel.onmessage = ({ data }) => changed(data.ids ?? [], data.messages);
  trouble = failed;
}

export async function loadConversations() {
  await takeOver(readLocal(OLD));
  const found = (await readAll("conversations")).filter(isConversation);
  const gone = found.filter((each) => each.deleted && Date.now() - each.changed > 60_000);
  for (const each of gone) await erase(each.id);
  return found.filter((each) => !each.deleted);
}

// Those of `ids` that are there, by id; of many all are read at once.
export async function loadEach(ids) {
  const get = async (id) => (await request("conversations", "readonly", (records) => records.get(id))) ?? memory.conversations.get(id);
  const found = ids.length > 20 ? await readAll("conversations") : await Promise.all(ids.map(get));
  return new Map(found.filter((each) => isConversation(each) && !each.deleted).map((each) => [each.id, each]));
}

export async function loadMessages(conversation) {
  const found = await request("messages", "readonly", (records) => records.index("conversation").getAll(conversation));
  const kept = [...memory.messages.values()].filter((each) => each.conversation === conversation);
  return [...(found ?? []), ...kept].map(repaired).filter(isMessage);
}

export async function loadMessage(id) {
  const found = repaired((await request("messages", "readonly", (records) => records.get(id))) ?? memory.messages.get(id));
  return isMessage(found) ? found : null;
}

export async function loadAllMessages() {
  return (await readAll("messages")).map(repaired).filter(isMessage);
}

// id -> conversation of the stored messages that a file names. The others of the store are not read: they may be large.
export async function loadOwners({ conversations, messages }) {
  const ids = new Set([...conversations.map(({ leaf }) => leaf), ...messages.flatMap(({ id, parent }) => [id, parent])]);
  const stored = [...memory.messages.keys()].filter((id) => ids.has(id));
  await transaction(["messages"], (tx) => {
    const cursor = tx.objectStore("messages").index("conversation").openKeyCursor();
    cursor.onsuccess = () => {
      if (!cursor.result) return;
      if (ids.has(cursor.result.primaryKey)) stored.push(cursor.result.primaryKey);
      cursor.result.continue();
    };
  });
  const known = stored.length > 20 ? (await loadAllMessages()).filter(({ id }) => ids.has(id)) : await Promise.all(stored.map(loadMessage));
  return new Map(known.filter(Boolean).map((each) => [each.id, each.conversation]));
}

// Writes a conversation, or several, and messages that this tab has written. The later name and the later deletion count,
// whichever tab is last; of two texts of a message the longer. `areNew`: none of the messages has been stored.
export async function save(conversation, messages = [], areNew = false) {
  const conversations = [].concat(conversation);
  const done = await transaction(["conversations", "messages"], (tx) => {
    for (const each of conversations) put(tx.objectStore("conversations"), each, merged);
    const records = tx.objectStore("messages");
    for (const each of messages) areNew ? records.put(each) : put(records, each, (old, ours) => (extent(old) > extent(ours) ? old : ours));
  });
  if (!done) {
    for (const each of conversations) memory.conversations.set(each.id, { ...each });
    for (const each of messages) memory.messages.set(each.id, { ...each });
    trouble();
  }
  channel?.postMessage({ ids: conversations.map(({ id }) => id), messages: areNew ? undefined : messages });
}

function put(records, ours, merge) {
  const read = records.get(ours.id);
  read.onsuccess = () => records.put(merge(read.result, ours));
}

function merged(old, ours) {
  if (!isConversation(old)) return ours;
  const [title, titled] = old.titled > ours.titled ? [old.title, old.titled] : [ours.title, ours.titled];
  const [deleted, changed] = old.changed > ours.changed ? [old.deleted, old.changed] : [ours.deleted, ours.changed];
  return { ...ours, kind: old.kind, title, titled, deleted, changed, updated: Math.max(old.updated, ours.updated) };
}

// How much of an answer there is.
export function extent(message) {
  return isMessage(message) ? message.content.length + (message.sums?.length ?? 0) : -1;
}

// Removes a conversation for good.
async function erase(id) {
  await transaction(["conversations", "messages"], (tx) => {
    tx.objectStore("conversations").delete(id);
    const cursor = tx.objectStore("messages").index("conversation").openKeyCursor(id);
    cursor.onsuccess = () => {
      if (!cursor.result) return;
      tx.objectStore("messages").delete(cursor.result.primaryKey);
      cursor.result.continue();
    };
  });
}

// ---- what a page leaves for itself when it is loaded again ----

export function leave(content) {
  writeSession(LEFT, JSON.stringify(content));
}

export function takeLeft() {
  try {
    const found = JSON.parse(sessionStorage.getItem(LEFT));
    sessionStorage.removeItem(LEFT);
    const writing = (found?.writing ?? []).filter((each) => isMessage(each?.message) && isConversation(each.conversation));
    return { draft: typeof found?.draft === "string" ? found.draft : "", writing };
  } catch {
    return { draft: "", writing: [] };
  }
}

// ---- settings ----

export function loadSettings() {
  const found = readLocal(SETTINGS);
  const settings = { ...DEFAULTS };
  if (found === null || typeof found !== "object") return settings;
  for (const [name, value] of Object.entries(DEFAULTS)) {
    const given = found[name];
    if (typeof given === typeof value || (value === null && Number.isInteger(given))) settings[name] = given;
  }
  return settings;
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    trouble();
  }
}

export function loadKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function saveKey(key) {
  writeSession(KEY, key); // where it fails, the key is asked for again
}

function writeSession(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // The browser keeps nothing for us.
  }
}

function readLocal(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

// ---- checks ----

const isText = (value) => typeof value === "string";
const isId = (value) => isText(value) && /^[^\p{Cc}\p{Cs}]+$/u.test(value);
const optional = ([check, form]) => [(value) => value === undefined || check(value), `${form}, or absent`];
const nullable = ([check, form]) => optional([(value) => value === null || check(value), `${form} or null`]);
const text = [isText, "a text"];
const number = [Number.isFinite, "a number"];
const id = [isId, "a text without control characters"];
const oneOf = (...values) => [(value) => values.includes(value), `one of ${values.join(", ")}`];
const record = (fields) => [(value) => !fault(value, fields), `an object with ${Object.keys(fields).join(", ")}`];
const listOf = ([check, form]) => [(value) => Array.isArray(value) && value.every(check), `a list, each ${form}`];

// What each field must be: [check, in words].
export const CONVERSATION = { id, title: text, kind: oneOf("chat", "compare"), titled: number, created: number, updated: number, changed: number, leaf: nullable(id) };
export const MESSAGE = {
  id, conversation: id, parent: [(value) => value === null || isId(value), "an id or null"], role: oneOf("user", "assistant"),
  content: text, created: number, model: optional(text), error: optional(text),
  state: optional(oneOf("writing", "done", "stopped", "cut", "failed")),
  sums: optional(listOf(record({ expression: text, result: text, at: number }))),
  tokens: optional(listOf([isToken, "[text, probability, position, alternatives]"])),
  stats: optional(record({ prompt: number, tokens: number, first: number, seconds: number, rate: nullable(number), limit: nullable(number) })),
};

function isToken(value) {
  if (!Array.isArray(value)) return false;
  const [token, chance, at, top] = value;
  const isAlternative = (each) => Array.isArray(each) && isText(each[0]) && Number.isFinite(each[1]);
  return isText(token) && Number.isFinite(chance) && Number.isFinite(at) && Array.isArray(top) && top.every(isAlternative);
}

// What is wrong with the first wrong field, or "".
export function fault(value, fields) {
  if (value === null || typeof value !== "object") return " is not an object";
  for (const [name, [check, form]] of Object.entries(fields))
    if (!check(value[name])) return `.${name} is ${String(JSON.stringify(value[name])).slice(0, 60)}; it must be ${form}`;
  return "";
}

const isConversation = (value) => !fault(value, CONVERSATION);
const isMessage = (value) => !fault(value, MESSAGE);

// A stored message without those of its details that are not valid.
function repaired(value) {
  const wrong = ["model", "error", "state", "sums", "tokens", "stats"].filter((name) => !MESSAGE[name][0](value?.[name]));
  return wrong.length ? { ...value, ...Object.fromEntries(wrong.map((name) => [name, undefined])) } : value;
}

// ---- the database ----

function openDatabase() {
  return new Promise((resolve) => {
    try {
      const opening = indexedDB.open("danalab", 1);
      opening.onupgradeneeded = () => {
        opening.result.createObjectStore("conversations", { keyPath: "id" });
        opening.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
      };
      opening.onsuccess = () => resolve(opening.result);
      opening.onerror = opening.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
}

// Resolves to whether everything has been written.
async function transaction(names, work) {
  const opened = await database;
  if (!opened) return false;
  return new Promise((resolve) => {
    try {
      const tx = opened.transaction(names, "readwrite");
      tx.oncomplete = () => resolve(true);
      tx.onabort = tx.onerror = () => resolve(false);
      work(tx);
    } catch {
      resolve(false);
    }
  });
}

async function request(name, mode, work) {
  const opened = await database;
  if (!opened) return undefined;
  return new Promise((resolve) => {
    try {
      const asked = work(opened.transaction(name, mode).objectStore(name));
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => resolve(undefined);
    } catch {
      resolve(undefined);
    }
  });
}

async function readAll(name) {
  return [...((await request(name, "readonly", (records) => records.getAll())) ?? []), ...memory[name].values()];
}

// Conversations of an earlier version, in which messages were a plain list.
async function takeOver(old) {
  if (!Array.isArray(old)) return;
  for (const { id, title, updated, messages } of old.filter((each) => isText(each?.id) && Array.isArray(each.messages))) {
    const created = Number.isFinite(updated) ? updated : Date.now();
    const conversation = {
      id, kind: "chat", title: isText(title) ? title : "", titled: 0, created, updated: created, leaf: null, deleted: false,
      changed: 0,
    };
    const kept = [];
    for (const { role, content, calculations } of messages.filter((each) => each !== null && typeof each === "object")) {
      const parent = kept.at(-1)?.id ?? null;
      const sums = Array.isArray(calculations) ? calculations.map((each) => ({ ...each, at: each?.position })) : undefined;
      const message = { id: `${id}.${kept.length}`, conversation: id, parent, role, content, created: created + kept.length, sums };
      if (isMessage(message)) kept.push(message);
    }
    conversation.leaf = kept.at(-1)?.id ?? null;
    if (kept.length) await save(conversation, kept);
  }
  try {
    localStorage.removeItem(OLD);
  } catch {
    // It was read, so this cannot fail but by a change of the browser's settings.
  }
}
