// Messages as DOM nodes.

import { element, show } from "./markdown.js";

const ICONS = "http://www.w3.org/2000/svg";

export function icon(name) {
  const svg = document.createElementNS(ICONS, "svg");
  const use = document.createElementNS(ICONS, "use");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export function iconButton(name, label, act, className = "icon") {
  const button = element("button", className);
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.title = label;
  button.append(icon(name));
  button.addEventListener("click", act);
  return button;
}

export function textButton(text, act, className) {
  const button = element("button", className, text);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

// A message of a conversation, and its later changes: {node, update(message, isWriting)}.
// `actions`: {copy, edit, regenerate, retry}, functions of the message's place.
export function messageView(message, place, actions) {
  const node = element("li", `message ${message.role}`);
  const sums = element("div", "sums");
  const content = element("div", "content");
  const failure = element("div", "failure");
  const tools = element("div", "tools");
  const note = element("span", "note");
  node.append(element("h2", "unseen", message.role === "user" ? "You" : "The model"), sums, content, failure, tools);
  const copy = iconButton("copy", "Copy the message", async () => {
    const copied = await actions.copy(place);
    copy.replaceChildren(icon(copied ? "done" : "close"));
    setTimeout(() => copy.replaceChildren(icon("copy")), 1500);
  });
  tools.append(copy);
  if (message.role === "user") tools.prepend(iconButton("edit", "Edit and send again", () => actions.edit(place)));
  else tools.append(iconButton("again", "Write another answer", () => actions.regenerate(place)), note);

  function update(message, isWriting) {
    node.classList.toggle("writing", isWriting);
    if (message.role === "user") content.textContent = message.content;
    else show(content, message.content);
    sums.replaceChildren(...(message.calculations ?? []).map(sum));
    note.textContent = message.note ?? "";
    tools.hidden = isWriting;
    copy.hidden = !message.content;
    failure.hidden = !message.error;
    failure.replaceChildren();
    if (message.error) failure.append(message.error, " ", textButton("Try again", () => actions.regenerate(place)));
  }

  update(message, false);
  return { node, update };
}

function sum({ expression, result }) {
  const node = element("span", "sum", `${expression} = `);
  node.append(element("b", "", result));
  return node;
}

// Puts an editor in place of a user's message; calls `send(text)` or `cancel()`.
export function editMessage(node, text, send, cancel) {
  const editor = element("form", "editor");
  const field = element("textarea");
  field.value = text;
  field.setAttribute("aria-label", "Message to edit");
  const bar = element("div", "bar");
  const submit = element("button", "primary", "Send");
  bar.append(textButton("Cancel", cancel, "plain"), submit);
  editor.append(field, bar);
  editor.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim()) send(field.value.trim());
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      cancel();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      editor.requestSubmit();
    }
  });
  node.classList.add("editing");
  node.replaceChildren(editor);
  field.focus();
}

export function conversationItem(conversation, isCurrent, pick, remove) {
  const node = element("li", isCurrent ? "current" : "");
  const title = conversation.title || "New conversation";
  const button = textButton(title, pick, "pick");
  if (isCurrent) button.setAttribute("aria-current", "true");
  node.append(button, iconButton("delete", `Delete: ${title}`, remove, "icon remove"));
  return node;
}
