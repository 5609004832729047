// The page: a list of conversations, one of which is shown; answers stream from the server. Each conversation is a record
// in localStorage, {id, title, updated, messages: [{role, content, state, error}]}, so tabs do not undo each other's.

import { answer, ask, request } from "./api.js";
import { show } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const PREFIX = "danalab.conversation.";
const SETTINGS = "danalab.settings";
const KEY = "danalab.key";
const DEFAULTS = { system: "", temperature: 0.8, top_p: 1, top_k: null, max_tokens: null, seed: null, theme: "auto", model: "" };
const QUESTIONS = ["What is 12 + 7?", "Who are you?", "Tell me a joke.", "What can you do?"];
const BATCH = 400_000; // characters of a file that the server reads at a time

const prompt = $("prompt");
const settings = { ...DEFAULTS, ...stored(localStorage, SETTINGS) };
let conversations = loadConversations();
let current = newConversation();
let models = [];
let writing = null; // {conversation, message, control}: the answer that is being written
let frame = 0;

// ---- what this browser keeps ----

function stored(storage, name) {
  try {
    return JSON.parse(storage.getItem(name));
  } catch {
    return null; // forbidden, or not ours
  }
}

function keep(storage, name, value) {
  try {
    if (value === null) storage.removeItem(name);
    else storage.setItem(name, JSON.stringify(value));
  } catch {
    toast("The browser's storage is full or closed: conversations are lost with the tab.");
  }
}

function isConversation(value) {
  const isMessage = (each) => typeof each?.content === "string" && ["system", "user", "assistant"].includes(each.role);
  return typeof value?.id === "string" && typeof value.title === "string" && Array.isArray(value.messages) && value.messages.every(isMessage);
}

function loadConversations() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
    return names.map((name) => stored(localStorage, name)).filter(isConversation);
  } catch {
    return [];
  }
}

function save(conversation) {
  if (!conversations.includes(conversation)) conversations.push(conversation);
  conversation.updated = Date.now();
  keep(localStorage, PREFIX + conversation.id, conversation);
}

function newConversation(messages = []) {
  const title = (messages.find(({ role }) => role === "user")?.content ?? "").trim().split("\n")[0].slice(0, 80);
  return { id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`, title, updated: Date.now(), messages };
}

// ---- asking ----

async function write(conversation, message) {
  const control = new AbortController();
  writing = { conversation, message, control };
  Object.assign(message, { state: "writing", error: undefined });
  save(conversation);
  draw();
  const said = conversation.messages.slice(0, conversation.messages.indexOf(message) + (message.content ? 1 : 0));
  try {
    let reason = "";
    for await (const piece of answer(said, settings, key(), control.signal)) {
      message.content += piece.text ?? "";
      reason = piece.reason ?? reason;
      frame ||= requestAnimationFrame(() => grown(message));
    }
    message.state = reason === "length" ? "cut" : "done";
  } catch (error) {
    if (control.signal.aborted) message.state = "stopped";
    else Object.assign(message, { state: "failed", error: error.message });
    if (error.status === 401) openSettings("key");
  }
  writing = null;
  save(conversation);
  draw();
  say(message.error ?? (message.state === "stopped" ? "Stopped." : "The answer is complete."));
}

function send(text) {
  if (!current.title) current.title = newConversation([{ role: "user", content: text }]).title;
  const message = { role: "assistant", content: "" };
  current.messages.push({ role: "user", content: text }, message);
  write(current, message);
  scrollToEnd();
}

// Writes the last answer again, from its beginning or (`goesOn`) from where it stopped.
function again(message, goesOn) {
  if (!goesOn) message.content = "";
  write(current, message);
}

function edit(message) {
  const place = current.messages.indexOf(message);
  const node = $("messages").children[place];
  const form = element("form", "editor");
  const field = element("textarea");
  const bar = element("div", "bar");
  Object.assign(field, { value: message.content, dir: "auto" });
  field.setAttribute("aria-label", "Message to edit");
  bar.append(button("Cancel", draw, "plain"), element("button", "primary", "Send"));
  form.append(field, bar);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value.trim() || writing) return;
    current.messages.length = place;
    send(field.value.trim());
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") draw();
    else if (isEnter(event)) form.requestSubmit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  node.classList.add("editing");
  node.replaceChildren(form);
  field.focus();
}

// ---- drawing ----

function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

function icon(name) {
  const template = element("template");
  template.innerHTML = `<svg aria-hidden="true"><use href="#i-${name}"></use></svg>`;
  return template.content.firstChild;
}

function button(text, act, className, iconName) {
  const node = element("button", className, iconName ? "" : text);
  node.type = "button";
  node.addEventListener("click", act);
  if (iconName) {
    node.append(icon(iconName));
    node.title = text;
    node.setAttribute("aria-label", text);
  }
  return node;
}

const NAMES = { user: "You", assistant: "The model", system: "Instructions" };
const NOTES = { stopped: "Stopped.", cut: "Cut off at the limit.", writing: "Interrupted." };

function messageNode(message, isLast) {
  const isAnswer = message.role === "assistant";
  const isOpen = writing?.message === message;
  const node = element("li", `message ${message.role}${isOpen ? " writing" : ""}`);
  const content = element("div", "content");
  const tools = element("div", "tools");
  node.dataset.state = isAnswer ? (message.state ?? "done") : "";
  node.append(element("h2", message.role === "system" ? "" : "unseen", NAMES[message.role]), content);
  if (isAnswer) show(content, message.content);
  else Object.assign(content, { textContent: message.content, dir: "auto" });
  if (message.error) {
    const failure = element("div", "failure", `${message.error} `);
    if (isLast) failure.append(button("Try again", () => again(message, true)));
    node.append(failure);
  }
  if (isOpen || message.role === "system") return node;
  if (message.content) tools.append(button("Copy the message", (event) => copy(message, event.currentTarget), "icon", "copy"));
  if (message.role === "user") tools.prepend(button("Edit and send again", () => edit(message), "icon", "edit"));
  if (isAnswer && isLast) {
    tools.append(button("Write another answer", () => again(message), "icon", "again"));
    if (message.content && ["stopped", "cut", "writing"].includes(message.state))
      tools.append(button("Continue", () => again(message, true), "carry-on"));
  }
  if (isAnswer && NOTES[message.state]) tools.append(element("span", "note", NOTES[message.state]));
  node.append(tools);
  return node;
}

async function copy({ content }, node) {
  const done = await navigator.clipboard.writeText(content).then(() => "done", () => "close");
  node.replaceChildren(icon(done));
  setTimeout(() => node.replaceChildren(icon("copy")), 1500);
}

function draw() {
  const { messages } = current;
  const follows = isAtEnd();
  $("messages").replaceChildren(...messages.map((each, place) => messageNode(each, place === messages.length - 1)));
  $("welcome").hidden = messages.length > 0;
  $("title").textContent = current.title || "New conversation";
  $("export-shown").hidden = !messages.length;
  document.title = current.title ? `${current.title} - danalab` : "danalab chat";
  if (follows) scrollToEnd();
  drawList();
  drawSend();
}

// A piece of an answer has come.
function grown(message) {
  frame = 0;
  if (writing?.message !== message || writing.conversation !== current) return;
  const follows = isAtEnd();
  show($("messages").lastChild.querySelector(".content"), message.content);
  if (follows) scrollToEnd();
}

function drawList() {
  const sorted = [...conversations].sort((a, b) => b.updated - a.updated);
  const nodes = sorted.map((each) => {
    const node = element("li", each === current ? "current" : "");
    const pick = button(each.title || "Untitled", () => open(each), "pick");
    if (each === current) pick.setAttribute("aria-current", "true");
    node.append(pick, button(`Delete: ${each.title}`, () => remove([each]), "icon act", "delete"));
    return node;
  });
  $("conversations").replaceChildren(...nodes);
}

function drawSend() {
  const label = writing ? "Stop" : "Send";
  $("send").replaceChildren(icon(label.toLowerCase()));
  $("send").setAttribute("aria-label", label);
  $("send").disabled = !writing && !prompt.value.trim();
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function isAtEnd() {
  const main = $("main");
  return main.scrollHeight - main.scrollTop - main.clientHeight < 80;
}

function scrollToEnd() {
  $("main").scrollTo({ top: $("main").scrollHeight, behavior: "instant" });
}

function say(text) {
  $("status").textContent = text; // for a screen reader
}

function toast(text, action, act) {
  $("toast").replaceChildren(text);
  if (action) $("toast").append(button(action, () => [($("toast").hidden = true), act()]));
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => ($("toast").hidden = true), 8000);
}

// ---- the list ----

function open(conversation) {
  current = conversation;
  setListing(false);
  draw();
  scrollToEnd();
  prompt.focus();
}

function remove(gone) {
  if (gone.includes(writing?.conversation)) writing.control.abort();
  conversations = conversations.filter((each) => !gone.includes(each));
  for (const { id } of gone) keep(localStorage, PREFIX + id, null);
  if (gone.includes(current)) current = newConversation();
  draw();
  $("new").focus();
  toast(gone.length > 1 ? `${gone.length} conversations deleted.` : "Conversation deleted.", "Undo", () => {
    gone.forEach(save);
    open(gone.at(-1));
  });
}

// On a narrow screen the list lies over the rest of the page, which cannot be reached meanwhile.
function setListing(isOpen) {
  const wasOpen = document.body.classList.contains("listing");
  document.body.classList.toggle("listing", isOpen);
  $("shade").hidden = !isOpen;
  $("column").inert = isOpen;
  $("open-sidebar").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) $("new").focus();
  else if (wasOpen) $("open-sidebar").focus();
}

// ---- files: JSONL that danalab sft reads ----

const asLine = ({ messages }) => `${JSON.stringify({ messages: messages.map(({ role, content }) => ({ role, content })) })}\n`;

function download(name, text) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function importFile(file) {
  const batches = [""];
  for (const line of (await file.text()).split(/(?<=\n)/)) {
    if (batches.at(-1).length + line.length > BATCH) batches.push("");
    batches[batches.length - 1] += line;
  }
  const added = [];
  try {
    for (const text of batches) added.push(...(await ask("v1/conversations", { text }, key())).conversations);
  } catch (error) {
    toast(`${file.name}: ${error.message}`);
    return;
  }
  added.map(({ messages }) => newConversation(messages)).forEach(save);
  draw();
  toast(`${added.length.toLocaleString("en")} conversation${added.length === 1 ? "" : "s"} imported.`);
}

// ---- settings ----

const FIELDS = ["system", "temperature", "top_p", "top_k", "max_tokens", "seed", "theme"];
const key = () => stored(sessionStorage, KEY) ?? "";

function openSettings(field = "system") {
  const form = $("settings").querySelector("form");
  for (const name of FIELDS) form.elements[name].value = settings[name] ?? "";
  form.elements.key.value = key();
  if (!$("settings").open) $("settings").showModal();
  form.elements[field].focus();
}

// A value out of range leaves the last good one.
function takeSettings() {
  const form = $("settings").querySelector("form");
  for (const field of FIELDS.map((name) => form.elements[name]).filter(({ validity }) => validity.valid))
    settings[field.name] = field.type !== "number" ? field.value : field.value === "" ? DEFAULTS[field.name] : field.valueAsNumber;
  const before = key();
  keep(sessionStorage, KEY, form.elements.key.value.trim());
  keep(localStorage, SETTINGS, settings);
  applyTheme();
  if (key() !== before) showModels();
}

function applyTheme() {
  document.documentElement.dataset.theme = settings.theme;
}

async function showModels() {
  try {
    models = (await request("v1/models", {}, key())).data;
  } catch (error) {
    $("facts").textContent = error.message;
    if (error.status === 401) openSettings("key");
    return;
  }
  const chosen = models.find(({ id }) => id === settings.model) ?? models[0];
  settings.model = chosen.id;
  $("model").hidden = models.length < 2;
  $("model").replaceChildren(...models.map(({ id }) => element("option", "", id)));
  $("model").value = chosen.id;
  $("facts").textContent = chosen.chat ? chosen.id : "A base model: it continues text rather than answering.";
}

// ---- events ----

function isEnter({ key: pressed, shiftKey, isComposing }) {
  return pressed === "Enter" && !shiftKey && !isComposing;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (writing) writing.control.abort();
  else if (text) {
    prompt.value = "";
    send(text);
  }
});
prompt.addEventListener("input", drawSend);
prompt.addEventListener("keydown", (event) => {
  if (isEnter(event) && matchMedia("(hover: hover)").matches) {
    event.preventDefault();
    if (!writing) $("composer").requestSubmit();
  } else if (event.key === "ArrowUp" && !prompt.value && !writing) {
    const last = current.messages.findLast(({ role }) => role === "user");
    if (last) edit(last);
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("listing")) setListing(false);
    else writing?.control.abort();
  } else if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    open(newConversation());
  }
});
addEventListener("storage", ({ key: name }) => {
  if (name !== null && !name.startsWith(PREFIX)) return;
  const ours = new Set([current, writing?.conversation].filter((each) => conversations.includes(each)).map(({ id }) => id));
  conversations = [...conversations.filter(({ id }) => ours.has(id)), ...loadConversations().filter(({ id }) => !ours.has(id))];
  drawList();
});
$("main").addEventListener("scroll", () => ($("to-end").hidden = isAtEnd()));
$("to-end").addEventListener("click", scrollToEnd);
$("new").addEventListener("click", () => open(newConversation()));
$("open-sidebar").addEventListener("click", () => setListing(true));
for (const id of ["close-sidebar", "shade"]) $(id).addEventListener("click", () => setListing(false));
matchMedia("(max-width: 46rem)").addEventListener("change", () => setListing(false));
$("model").addEventListener("change", () => {
  settings.model = $("model").value;
  keep(localStorage, SETTINGS, settings);
  showModels();
});
$("export-shown").addEventListener("click", () => download("conversation.jsonl", asLine(current)));
$("export").addEventListener("click", () => download("conversations.jsonl", conversations.map(asLine).join("")));
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  for (const file of $("file").files) await importFile(file);
  $("file").value = "";
  $("settings").close();
});
$("delete-all").addEventListener("click", () => {
  $("settings").close();
  if (conversations.length) remove([...conversations]);
});
$("open-settings").addEventListener("click", () => openSettings());
$("settings").addEventListener("close", takeSettings);

$("examples").append(
  ...QUESTIONS.map((text) => {
    const entry = element("li");
    entry.append(button(text, () => writing || send(text)));
    return entry;
  }),
);
applyTheme();
draw();
prompt.focus();
await showModels();
document.body.dataset.ready = "yes";
