// The page: one conversation is shown, several are kept; answers stream from the server.

import { answer, loadModel } from "./api.js";
import * as store from "./store.js";
import { conversationItem, editMessage, icon, messageView, textButton } from "./view.js";

const EXAMPLES = ["What is 12 * 7?", "Who are you?", "Write a short poem about rivers.", "How many letters r are in strawberry?"];

const $ = (id) => document.getElementById(id);
const page = { prompt: $("prompt"), send: $("send"), main: $("main"), messages: $("messages"), settings: $("settings") };
let conversations = store.loadConversations();
let settings = store.loadSettings();
let key = store.loadKey();
let current = store.newConversation();
let views = [];
let writing = null; // the AbortController of the answer that is being written

// ---- asking ----

async function ask(text) {
  current.messages.push({ role: "user", content: text });
  current.title ||= text.replace(/\s+/g, " ").slice(0, 60);
  if (!conversations.includes(current)) conversations.unshift(current);
  draw();
  await write();
}

// Writes the answer to the last question.
async function write() {
  const conversation = current;
  const sent = conversation.messages
    .filter(({ content }) => content)
    .map(({ role, content, calculations }) => ({ role, content, ...(calculations && { calculations }) }));
  const message = { role: "assistant", content: "" };
  conversation.messages.push(message);
  draw();
  const view = views.at(-1);
  const control = (writing = new AbortController());
  const started = performance.now();
  let first = 0;
  let frame = 0;
  const paint = () => {
    frame = 0;
    if (conversation !== current) return;
    const follow = isAtEnd();
    view.update(message, writing === control);
    if (follow) scrollToEnd();
  };
  setWriting();
  try {
    for await (const piece of answer(sent, settings, key, control.signal)) {
      if (piece.text) message.content += piece.text;
      if (piece.calculation) (message.calculations ??= []).push(piece.calculation);
      if (piece.reason === "length") message.cut = true;
      if (piece.usage) message.note = describe(piece.usage, message, performance.now() - (first || started));
      first ||= performance.now();
      frame ||= requestAnimationFrame(paint);
    }
    if (!message.content) message.note = `An empty answer. ${message.note ?? ""}`;
  } catch (error) {
    if (control.signal.aborted) message.note = "Stopped.";
    else {
      message.error = error.message;
      if (error.status === 401) openSettings("key");
    }
  }
  if (writing === control) writing = null;
  conversation.updated = Date.now();
  cancelAnimationFrame(frame);
  paint();
  save();
  setWriting();
  say(message.error ?? (message.note === "Stopped." ? "Stopped." : "The answer is complete."));
}

function describe(usage, message, milliseconds) {
  const speed = usage.completion_tokens > 1 ? `, ${((usage.completion_tokens * 1000) / milliseconds).toFixed(0)} a second` : "";
  return `${usage.completion_tokens} tokens${speed}${message.cut ? "; cut off at the limit" : ""}`;
}

function stop() {
  writing?.abort();
}

async function regenerate(place) {
  stop();
  current.messages.length = place;
  await write();
}

function edit(place) {
  stop();
  const { node } = views[place];
  const resend = (text) => {
    current.messages.length = place;
    if (place === 0) current.title = "";
    ask(text);
    page.prompt.focus();
  };
  editMessage(node, current.messages[place].content, resend, () => {
    draw();
    views[place].node.querySelector("button").focus();
  });
}

// ---- conversations ----

function open(conversation) {
  stop();
  current = conversation;
  setListing(false);
  draw();
  scrollToEnd("instant");
  page.prompt.focus();
}

function remove(conversation) {
  if (conversation === current) stop();
  const place = conversations.indexOf(conversation);
  conversations.splice(place, 1);
  if (conversation === current) current = store.newConversation();
  draw();
  save();
  (isListing() ? $("new") : page.prompt).focus();
  toast("Conversation deleted.", "Undo", () => {
    conversations.splice(place, 0, conversation);
    save();
    open(conversation);
  });
}

function save() {
  conversations.sort((a, b) => b.updated - a.updated);
  drawList();
  if (!store.saveConversations(conversations))
    toast("The browser's storage is full or closed: conversations are lost with the tab.");
}

// ---- drawing ----

function draw() {
  views = current.messages.map((message, place) => messageView(message, place, { copy, edit, regenerate }));
  page.messages.replaceChildren(...views.map((view) => view.node));
  $("welcome").hidden = current.messages.length > 0;
  $("title").textContent = current.title || "New conversation";
  document.title = current.title ? `${current.title} - danalab` : "danalab chat";
  drawList();
  scrollToEnd();
}

function drawList() {
  const items = conversations.map((each) => conversationItem(each, each === current, () => open(each), () => remove(each)));
  $("conversations").replaceChildren(...items);
}

function setWriting() {
  page.send.replaceChildren(icon(writing ? "stop" : "send"));
  page.send.setAttribute("aria-label", writing ? "Stop" : "Send");
  page.send.disabled = !writing && !page.prompt.value.trim();
  page.messages.setAttribute("aria-busy", String(Boolean(writing)));
}

async function copy(place) {
  try {
    await navigator.clipboard.writeText(current.messages[place].content);
    return true;
  } catch {
    return false;
  }
}

function isAtEnd() {
  return page.main.scrollHeight - page.main.scrollTop - page.main.clientHeight < 80;
}

function scrollToEnd(behavior = "instant") {
  page.main.scrollTo({ top: page.main.scrollHeight, behavior });
}

function say(text) {
  $("status").textContent = "";
  setTimeout(() => ($("status").textContent = text), 50);
}

let toastTimer = 0;
function toast(text, action, act) {
  const button = action && textButton(action, () => {
    $("toast").hidden = true;
    act();
  });
  $("toast").replaceChildren(text, ...(button ? [button] : []));
  $("toast").hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => ($("toast").hidden = true), 6000);
}

function grow() {
  page.prompt.style.height = "auto";
  page.prompt.style.height = `${page.prompt.scrollHeight}px`;
  setWriting();
}

// On a narrow screen the list of conversations lies over the rest, which cannot be reached meanwhile.
function isListing() {
  return document.body.classList.contains("listing");
}

function setListing(isOpen) {
  document.body.classList.toggle("listing", isOpen);
  $("shade").hidden = !isOpen;
  $("open-sidebar").setAttribute("aria-expanded", String(isOpen));
  for (const rest of [$("column"), $("skip")]) rest.inert = isOpen;
}

function openSidebar() {
  setListing(true);
  $("new").focus();
}

function closeSidebar() {
  setListing(false);
  $("open-sidebar").focus();
}

function keepFocusInSidebar(event) {
  const stops = [...document.querySelectorAll("#sidebar button, #toast:not([hidden]) button")];
  const [edge, other] = event.shiftKey ? [stops[0], stops.at(-1)] : [stops.at(-1), stops[0]];
  if (document.activeElement !== edge && stops.includes(document.activeElement)) return;
  event.preventDefault();
  other.focus();
}

// ---- settings ----

function openSettings(field = "system") {
  const form = page.settings.querySelector("form");
  for (const name of Object.keys(store.DEFAULTS)) form.elements[name].value = settings[name] ?? "";
  form.elements.key.value = key;
  if (!page.settings.open) page.settings.showModal();
  form.elements[field].focus();
}

function takeSettings() {
  const form = page.settings.querySelector("form");
  for (const [name, normal] of Object.entries(store.DEFAULTS)) {
    const field = form.elements[name];
    if (!field.validity.valid) continue; // keep the last good value
    if (field.type !== "number") settings[name] = field.value;
    else settings[name] = field.value === "" ? normal : field.valueAsNumber;
  }
  const changed = key !== form.elements.key.value.trim();
  key = form.elements.key.value.trim();
  store.saveSettings(settings);
  store.saveKey(key);
  applyTheme();
  if (changed) showModel();
}

function applyTheme() {
  if (settings.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
}

async function showModel() {
  try {
    const model = await loadModel(key);
    $("model").textContent = model.id;
    const step = model.step === null ? "" : `, step ${model.step.toLocaleString("en")}`;
    const kind = model.chat ? "" : " It is a base model: it continues text rather than answering.";
    $("facts").textContent = `${model.id}${step}, context of ${model.max_model_len.toLocaleString("en")} tokens.${kind}`;
  } catch (error) {
    $("model").textContent = "";
    $("facts").textContent = error.message;
    if (error.status === 401) openSettings("key");
  }
}

// ---- events ----

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = page.prompt.value.trim();
  if (writing) stop();
  else if (text) {
    page.prompt.value = "";
    grow();
    ask(text);
  }
});
page.prompt.addEventListener("input", grow);
page.prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && matchMedia("(hover: hover)").matches) {
    event.preventDefault();
    if (!writing) $("composer").requestSubmit();
  } else if (event.key === "ArrowUp" && !page.prompt.value) {
    const last = current.messages.findLastIndex(({ role }) => role === "user");
    if (last >= 0) edit(last);
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !page.settings.open) {
    if (isListing()) closeSidebar();
    else stop();
  } else if (event.key === "Tab" && isListing()) keepFocusInSidebar(event);
  else if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    open(store.newConversation());
  }
});
page.main.addEventListener("scroll", () => ($("to-end").hidden = isAtEnd()));
$("to-end").addEventListener("click", () => scrollToEnd("smooth"));
$("new").addEventListener("click", () => open(store.newConversation()));
$("open-sidebar").addEventListener("click", openSidebar);
$("close-sidebar").addEventListener("click", closeSidebar);
$("shade").addEventListener("click", closeSidebar);
matchMedia("(max-width: 46rem)").addEventListener("change", () => setListing(false));
$("open-settings").addEventListener("click", () => openSettings());
page.settings.addEventListener("close", takeSettings);
$("theme").addEventListener("change", takeSettings);
$("delete-all").addEventListener("click", () => {
  const all = conversations;
  stop();
  conversations = [];
  current = store.newConversation();
  draw();
  save();
  page.settings.close();
  toast("All conversations deleted.", "Undo", () => {
    conversations = all;
    save();
  });
});
store.onOtherTab(() => {
  const found = store.loadConversations();
  conversations = found.map((each) => (each.id === current.id ? current : each));
  drawList();
});

for (const text of EXAMPLES) {
  const entry = document.createElement("li");
  entry.append(textButton(text, () => ask(text)));
  $("examples").append(entry);
}
applyTheme();
draw();
setWriting();
showModel();
page.prompt.focus();
