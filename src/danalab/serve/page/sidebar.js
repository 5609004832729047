// The list of conversations: by date, searched, renamed. On a narrow screen it lies over the rest of the page, which
// cannot be reached meanwhile.

import { $, element, iconButton, textButton } from "./dom.js";

const DAY = 86_400_000;
const STEP = 200; // conversations that are listed at first, and more at each wish

let limit = STEP;

export function addressOf({ id }) {
  return `#/c/${encodeURIComponent(id)}`;
}

// `pick`, `remove` and `rename` get a conversation.
export function showList(conversations, current, { pick, remove, rename }) {
  const sorted = [...conversations].sort((a, b) => b.updated - a.updated);
  const nodes = [];
  let group = "";
  for (const each of sorted.slice(0, limit)) {
    const name = period(each.updated);
    if (name !== group) nodes.push(element("li", "period", (group = name)));
    nodes.push(item(each, each === current, { pick, remove, rename }));
  }
  if (sorted.length > limit) {
    const more = element("li");
    more.append(textButton(`Show more (${(sorted.length - limit).toLocaleString("en")})`, () => {
      limit += STEP;
      showList(conversations, current, { pick, remove, rename });
    }, "more"));
    nodes.push(more);
  }
  $("conversations").replaceChildren(...nodes);
  $("nothing").hidden = nodes.length > 0 || !$("search").value.trim();
}

function period(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  if (time >= today - 7 * DAY) return "Last 7 days";
  if (time >= today - 30 * DAY) return "Last 30 days";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}

function item(conversation, isCurrent, { pick, remove, rename }) {
  const node = element("li", isCurrent ? "current" : "");
  const title = conversation.title || "New conversation";
  const link = element("a", "pick", title);
  link.href = addressOf(conversation);
  link.dir = "auto";
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // in another tab
    event.preventDefault();
    pick(conversation);
  });
  if (isCurrent) link.setAttribute("aria-current", "page");
  const edit = () => node.replaceChildren(nameField(title, (text, byKey) => rename(conversation, text, byKey)));
  node.append(
    link,
    iconButton("edit", `Rename: ${title}`, () => {
      edit();
      node.firstChild.select();
    }, "icon act"),
    iconButton("delete", `Delete: ${title}`, () => remove(conversation), "icon act remove"),
  );
  return node;
}

// Calls `done` with the new name, or with null where it stays, and whether it was ended by a key.
function nameField(title, done) {
  const field = element("input", "name");
  let ended = false;
  const end = (text, byKey = true) => {
    if (ended) return;
    ended = true;
    field.blur();
    done(text, byKey);
  };
  field.value = title;
  field.dir = "auto";
  field.setAttribute("aria-label", "Name of the conversation");
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") end(field.value.trim() || null);
    else if (event.key === "Escape") end(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  field.addEventListener("blur", () => end(field.value.trim() || null, false));
  return field;
}

// ---- over the page ----

export function isListing() {
  return document.body.classList.contains("listing");
}

export function setListing(isOpen) {
  document.body.classList.toggle("listing", isOpen);
  $("shade").hidden = !isOpen;
  $("open-sidebar").setAttribute("aria-expanded", String(isOpen));
  for (const rest of [$("column"), $("skip")]) rest.inert = isOpen;
}

export function openSidebar() {
  setListing(true);
  $("new").focus();
}

export function closeSidebar() {
  setListing(false);
  $("open-sidebar").focus();
}

export function keepFocusInSidebar(event) {
  const stops = [...document.querySelectorAll("#sidebar :is(button, a, input), #toast:not([hidden]) button")];
  const [edge, other] = event.shiftKey ? [stops[0], stops.at(-1)] : [stops.at(-1), stops[0]];
  if (document.activeElement !== edge && stops.includes(document.activeElement)) return;
  event.preventDefault();
  other.focus();
}
