// The page: one conversation is shown, others are kept and may go on; answers stream from the server.

import { listenToAnswers, live, stopAll } from "./answers.js";
import { loadRuns } from "./api.js";
import { archiveText, besides, readArchive, trainingLine } from "./archive.js";
import { Thread } from "./conversation.js";
import { $, download, element, icon, say, textButton, toast } from "./dom.js";
import { COMPARE, card, examplesOf, showCards, showHeaderCard, showSelector } from "./models.js";
import { applyTheme, openSettings, takeSettings } from "./settings.js";
import * as sidebar from "./sidebar.js";
import * as store from "./store.js";
import { hideCard } from "./tokens.js";
import { newConversation } from "./tree.js";

const prompt = $("prompt");
const settings = store.loadSettings();
let key = store.loadKey();
let conversations = [];
let runs = [];
let chosen = "";
let matching = null; // ids of the conversations that the search has

const thread = new Thread({
  models: () => runs.map(({ id }) => id),
  chosen: () => (chosen === COMPARE ? (runs.at(-1)?.id ?? "") : chosen),
  settings: () => ({ ...settings }),
  key: () => key,
  kept(conversation) {
    if (conversations.includes(conversation)) return;
    conversations.push(conversation);
    history.replaceState(null, "", address(conversation));
  },
  drawn: showAround,
});

// ---- conversations ----

function address(conversation) {
  return conversations.includes(conversation) ? sidebar.addressOf(conversation) : "#/";
}

async function open(conversation, { keepsAddress = false } = {}) {
  sidebar.setListing(false);
  await thread.open(conversation);
  if (!keepsAddress && location.hash !== address(conversation)) history.pushState(null, "", address(conversation));
  if (conversation.kind === "compare") choose(COMPARE);
  else if (chosen === COMPARE && thread.path.length) choose(thread.path.at(-1).model ?? "");
  prompt.focus();
}

function startNew() {
  return open(newConversation(chosen === COMPARE ? "compare" : "chat"));
}

// Shows what the address names.
async function route() {
  const found = conversations.find((each) => sidebar.addressOf(each) === location.hash);
  if (found) {
    if (found !== thread.current) await open(found, { keepsAddress: true });
    return;
  }
  if (!location.hash.startsWith("#/c/")) {
    if (["", "#/"].includes(location.hash) && thread.path.length) await open(newConversation(), { keepsAddress: true });
    return;
  }
  toast("This conversation is not kept in this browser.");
  history.replaceState(null, "", "#/");
}

async function remove(gone) {
  for (const each of gone) {
    stopAll(each);
    Object.assign(each, { deleted: true, changed: Date.now() });
  }
  await store.save(gone);
  conversations = conversations.filter((each) => !each.deleted);
  const wasShown = gone.includes(thread.current);
  if (wasShown) {
    const wasListing = sidebar.isListing();
    await thread.open(newConversation(chosen === COMPARE ? "compare" : "chat"));
    history.replaceState(null, "", "#/");
    sidebar.setListing(wasListing);
  }
  showAround();
  (sidebar.isListing() ? $("new") : prompt).focus();
  toast(gone.length > 1 ? `${gone.length} conversations deleted.` : "Conversation deleted.", "Undo", async () => {
    for (const each of gone) Object.assign(each, { deleted: false, changed: Date.now() + 1 });
    await store.save(gone);
    conversations.push(...gone);
    if (wasShown) await open(gone.at(-1));
    else showAround();
  });
}

function rename(conversation, title, byKey) {
  if (title && title !== conversation.title) {
    Object.assign(conversation, { title, titled: Date.now() });
    store.save(conversation);
  }
  showAround();
  if (byKey) document.querySelector(`#conversations [href="${sidebar.addressOf(conversation)}"]`)?.focus();
}

async function search() {
  const words = $("search").value.trim().toLowerCase();
  if (!words) matching = null;
  else {
    const messages = await store.loadAllMessages();
    const inText = messages.filter(({ content }) => content.toLowerCase().includes(words)).map((each) => each.conversation);
    const inTitle = conversations.filter(({ title }) => title.toLowerCase().includes(words)).map(({ id }) => id);
    if (words !== $("search").value.trim().toLowerCase()) return; // of a later search
    matching = new Set([...inText, ...inTitle]);
  }
  showList();
}

// Another tab has changed conversations, or a file has come: then their messages are read, where they are at hand.
async function takeChanges(ids, messages) {
  const stored = await store.loadEach(ids);
  const listed = new Map(conversations.map((each) => [each.id, each]));
  const added = [];
  for (const id of ids) {
    const old = listed.get(id);
    if (!stored.has(id)) {
      if (old) stopAll(Object.assign(old, { deleted: true, changed: Date.now() }));
    } else if (old) Object.assign(old, stored.get(id), { leaf: old.leaf });
    else added.push(stored.get(id));
  }
  conversations = conversations.filter((each) => !each.deleted).concat(added);
  if (listed.has(thread.current.id) && !conversations.includes(thread.current)) {
    await thread.open(newConversation());
    history.replaceState(null, "", "#/");
    toast("The conversation was deleted in another tab.");
  }
  const known = ids.filter((id) => thread.trees.has(id));
  await thread.merge(messages ?? (await Promise.all(known.map(store.loadMessages))).flat());
  showAround();
}

// ---- files ----

async function exportAll() {
  const kept = new Set(conversations.map(({ id }) => id));
  const messages = (await store.loadAllMessages()).filter((each) => kept.has(each.conversation));
  download("danalab-conversations.json", archiveText(conversations, messages), "application/json");
}

function exportShown() {
  const path = thread.isComparison ? thread.before({ parent: thread.current.leaf, model: runs.at(-1)?.id }) : thread.path;
  download(`${thread.current.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation"}.jsonl`, trainingLine(path, settings.system), "application/jsonl");
}

const BATCH = 50; // conversations that are stored together

async function importFile(file) {
  let read;
  try {
    read = readArchive(await file.text());
  } catch (error) {
    toast(`${file.name}: ${error.message}`);
    return;
  }
  const { conversations: added, messages } = besides(read, await store.loadOwners(read));
  const messagesOf = new Map(added.map(({ id }) => [id, []]));
  for (const each of messages) messagesOf.get(each.conversation).push(each);
  for (let done = 0; done < added.length; done += BATCH) {
    toast(`Importing: ${done.toLocaleString("en")} of ${added.length.toLocaleString("en")} conversations.`);
    const batch = added.slice(done, done + BATCH);
    await store.save(batch, batch.flatMap(({ id }) => messagesOf.get(id)), true);
  }
  await takeChanges(added.map(({ id }) => id));
  toast(`${added.length.toLocaleString("en")} conversation${added.length === 1 ? "" : "s"} imported.`);
}

// ---- around the messages ----

function showAround() {
  const { current } = thread;
  const isEmpty = !thread.path.length;
  $("welcome").hidden = !isEmpty;
  $("column").classList.toggle("comparing", thread.isComparison);
  $("title").textContent = current.title || (thread.isComparison ? "New comparison" : "New conversation");
  $("export-shown").hidden = isEmpty;
  document.title = current.title ? `${current.title} - danalab` : "danalab chat";
  showList();
  showSend();
}

function showList() {
  const shown = matching ? conversations.filter(({ id }) => matching.has(id)) : conversations;
  if (document.activeElement?.closest("#conversations .name")) return; // a name is being typed
  sidebar.showList(shown, thread.current, { pick: open, remove: (each) => remove([each]), rename });
}

function showSend() {
  const isWriting = thread.isWriting;
  $("send").replaceChildren(icon(isWriting ? "stop" : "send"));
  $("send").setAttribute("aria-label", isWriting ? "Stop" : "Send");
  $("send").disabled = !isWriting && !prompt.value.trim();
}

function choose(model) {
  chosen = showSelector(runs, model);
  showHeaderCard(runs, chosen);
  showWelcome();
}

function showWelcome() {
  const isAll = chosen === COMPARE;
  const run = runs.find(({ id }) => id === chosen);
  $("invitation").textContent = isAll ? "Ask all of them" : "Ask something";
  $("facts").textContent = run && !run.chat ? "A base model: it continues text rather than answering." : "";
  $("about").replaceChildren(...(run && !isAll ? [card(run)] : []));
  const entries = examplesOf(runs, chosen).map((text) => {
    const entry = element("li");
    entry.append(textButton(text, () => thread.ask(text)));
    return entry;
  });
  $("examples").replaceChildren(...entries);
}

async function showModels() {
  try {
    runs = await loadRuns(key);
    choose(chosen || settings.model);
    showCards(runs);
  } catch (error) {
    $("facts").textContent = error.message;
    if (error.status === 401) openSettings(settings, key, "key");
  }
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
  showSend();
}

// ---- events ----

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (thread.isWriting) thread.stop();
  else if (text) {
    prompt.value = "";
    grow();
    thread.ask(text);
  }
});
prompt.addEventListener("input", grow);
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && matchMedia("(hover: hover)").matches) {
    event.preventDefault();
    if (!thread.isWriting) $("composer").requestSubmit();
  } else if (event.key === "ArrowUp" && !prompt.value) {
    const last = thread.path.findLast(({ role }) => role === "user");
    if (last) thread.edit(last);
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (!$("token-card").hidden) hideCard();
    else if (sidebar.isListing()) sidebar.closeSidebar();
    else thread.stop();
  } else if (event.key === "Tab" && sidebar.isListing()) sidebar.keepFocusInSidebar(event);
  else if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    startNew();
  }
});
$("main").addEventListener("scroll", () => {
  $("to-end").hidden = thread.isAtEnd();
  hideCard();
});
$("to-end").addEventListener("click", () => thread.scrollToEnd("smooth"));
$("new").addEventListener("click", startNew);
$("search").addEventListener("input", search);
$("open-sidebar").addEventListener("click", sidebar.openSidebar);
$("close-sidebar").addEventListener("click", sidebar.closeSidebar);
$("shade").addEventListener("click", sidebar.closeSidebar);
matchMedia("(max-width: 46rem)").addEventListener("change", () => sidebar.setListing(false));
$("model").addEventListener("change", () => {
  settings.model = $("model").value;
  store.saveSettings(settings);
  choose(settings.model);
  const kind = chosen === COMPARE ? "compare" : "chat";
  if (thread.current.kind !== kind) open(newConversation(kind));
});
$("card").addEventListener("click", () => $("models").showModal());
$("export-shown").addEventListener("click", exportShown);
$("open-settings").addEventListener("click", () => openSettings(settings, key));
function applySettings() {
  const before = key;
  key = takeSettings(settings);
  if (key !== before) showModels();
}
$("settings").addEventListener("close", applySettings);
$("theme").addEventListener("change", applySettings);
$("export").addEventListener("click", exportAll);
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
addEventListener("popstate", route);
addEventListener("pagehide", () => {
  const writing = [...live.values()].map(({ message, conversation }) => ({ message, conversation }));
  store.leave({ draft: prompt.value, writing });
});
addEventListener("pageshow", (event) => event.persisted && store.takeLeft());

let isTold = false;
store.watch(takeChanges, () => {
  if (!isTold) toast("The browser's storage is full or closed: conversations are lost with the tab.");
  isTold = true;
});
listenToAnswers({
  changed(message) {
    thread.grown(message);
    showSend();
  },
  ended(message, error) {
    if (message.conversation === thread.current.id) {
      thread.draw();
      say(message.error ?? (message.state === "stopped" ? "Stopped." : "The answer is complete."));
    } else showList();
    if (error?.status === 401) openSettings(settings, key, "key");
  },
});

const left = store.takeLeft();
prompt.value = left.draft;
applyTheme(settings);
thread.draw();
grow();
prompt.focus();
const modelsShown = showModels();
conversations = await store.loadConversations();
for (const { conversation } of left.writing) if (!conversations.some(({ id }) => id === conversation.id)) conversations.push(conversation);
showAround();
await route();
await modelsShown;
for (const { conversation, message } of left.writing)
  await thread.resume({ conversation: conversations.find(({ id }) => id === conversation.id), message });
if (left.writing.length) thread.draw();
document.body.dataset.ready = "yes";
