// Conversations and settings, kept in this browser only. What is read back is checked: other pages' data or a full
// storage must not break the page.

const CONVERSATIONS = "danalab.conversations";
const SETTINGS = "danalab.settings";
const KEY = "danalab.key";

export const DEFAULTS = { system: "", temperature: 0.8, top_p: 1, max_tokens: null, seed: null, theme: "auto" };

export function loadConversations() {
  const found = read(CONVERSATIONS);
  return Array.isArray(found) ? found.filter(isConversation) : [];
}

// Returns false where the browser's storage is full or closed.
export function saveConversations(conversations) {
  return write(CONVERSATIONS, conversations.filter((each) => each.messages.length));
}

export function newConversation() {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", updated: Date.now(), messages: [] };
}

export function loadSettings() {
  const found = read(SETTINGS);
  const settings = { ...DEFAULTS };
  if (found === null || typeof found !== "object") return settings;
  for (const [name, value] of Object.entries(DEFAULTS)) {
    const given = found[name];
    if (typeof given === typeof value || (value === null && Number.isInteger(given))) settings[name] = given;
  }
  return settings;
}

export function saveSettings(settings) {
  write(SETTINGS, settings);
}

export function loadKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function saveKey(key) {
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // The key is then asked for again.
  }
}

// Calls `changed` when another tab has changed the conversations.
export function onOtherTab(changed) {
  addEventListener("storage", (event) => event.key === CONVERSATIONS && changed());
}

function isConversation(value) {
  return (
    typeof value?.id === "string" &&
    typeof value.title === "string" &&
    Array.isArray(value.messages) &&
    value.messages.every(
      (each) =>
        ["user", "assistant"].includes(each?.role) &&
        typeof each.content === "string" &&
        (each.calculations === undefined || (Array.isArray(each.calculations) && each.calculations.every(isSum))),
    )
  );
}

function isSum(value) {
  return typeof value?.expression === "string" && typeof value.result === "string";
}

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
