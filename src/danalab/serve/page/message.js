// A message as a DOM node, with what can be done with it.

import { element, icon, iconButton, textButton } from "./dom.js";
import { show } from "./markdown.js";
import { moveAmongTokens, showTokens } from "./tokens.js";

// {node, update({versions, isWriting, isElsewhere, isLast, showsModel})}.
// `actions`: copy, edit, again, carryOn, turn; functions of the message (turn: and of the version to show).
export function messageView(message, actions, tag = "li") {
  const isAnswer = message.role === "assistant";
  const node = element(tag, `message ${message.role}`);
  const heading = element("h2", "unseen", isAnswer ? "The model" : "You");
  const content = element("div", "content");
  const probabilities = element("div", "content tokens");
  const failure = element("div", "failure");
  const tools = element("div", "tools");
  const note = element("span", "note");
  const branches = branchesView(message, actions);
  probabilities.setAttribute("role", "group");
  probabilities.setAttribute("aria-label", "Tokens and their probabilities");
  probabilities.addEventListener("keydown", moveAmongTokens);
  probabilities.hidden = true;
  if (!isAnswer) content.dir = "auto";
  const copy = iconButton("copy", "Copy the message", async () => {
    const copied = await actions.copy(message);
    copy.replaceChildren(icon(copied ? "done" : "close"));
    setTimeout(() => copy.replaceChildren(icon("copy")), 1500);
  });
  const edit = iconButton("edit", "Edit and send again", () => actions.edit(message));
  const again = iconButton("again", "Write another answer", () => actions.again(message));
  const chances = iconButton("chances", "Token probabilities", () => {
    const shown = chances.getAttribute("aria-pressed") !== "true";
    chances.setAttribute("aria-pressed", String(shown));
    update(last);
  });
  chances.setAttribute("aria-pressed", "false");
  const facts = factsView();
  const carryOn = textButton("Continue", () => actions.carryOn(message), "carry-on");
  tools.append(...(isAnswer ? [copy, again, chances, facts.node, branches.node, carryOn, note] : [branches.node, edit, copy]));
  node.append(heading, content, probabilities, failure, tools);
  let last = {};

  function update(state) {
    last = state;
    const { versions, isWriting, isElsewhere, isLast, showsModel } = state;
    const shown = chances.getAttribute("aria-pressed") === "true";
    node.classList.toggle("writing", isWriting);
    node.dataset.state = isAnswer ? (message.state ?? "done") : "";
    if (!isAnswer) content.textContent = message.content;
    else if (shown) showTokens(probabilities, message);
    else show(content, message.content, message.sums);
    content.hidden = shown;
    probabilities.hidden = !shown;
    tools.hidden = isWriting;
    branches.update(versions);
    copy.hidden = !message.content;
    failure.hidden = !message.error;
    failure.replaceChildren();
    if (!isAnswer) return;
    heading.textContent = message.model || "The model";
    heading.classList.toggle("unseen", !showsModel);
    chances.hidden = !message.tokens?.length;
    const canGoOn = ["stopped", "cut", "writing"].includes(message.state) && !fillsContext(message);
    carryOn.hidden = !isLast || isElsewhere || !message.content || !canGoOn;
    facts.update(message);
    note.textContent = noteOf(message, isWriting, isElsewhere);
    if (message.error) failure.append(message.error, " ", textButton("Try again", () => (message.content ? actions.carryOn : actions.again)(message)));
  }

  return { node, update };
}

// Whether an answer was cut off by the model's context, and not by the setting.
function fillsContext({ state, stats }) {
  return state === "cut" && Boolean(stats) && (!stats.limit || stats.tokens < stats.limit);
}

function noteOf(message, isWriting, isElsewhere) {
  if (isWriting) return "";
  if (isElsewhere) return "Being written in another tab.";
  if (message.state === "writing") return "Interrupted.";
  if (message.state === "stopped") return "Stopped.";
  if (message.state === "cut") return fillsContext(message) ? "The model's context is full." : "Cut off at the limit.";
  return message.state === "done" && !message.content ? "An empty answer." : "";
}

// < 2/3 > where a place has several versions.
function branchesView(message, { turn }) {
  const node = element("span", "branches");
  let versions = [];
  const place = () => versions.indexOf(message);
  const before = iconButton("left", "The version before", () => turn(message, versions[place() - 1]));
  const after = iconButton("right", "The next version", () => turn(message, versions[place() + 1]));
  const count = element("span", "count");
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", "Versions");
  node.append(before, count, after);
  return {
    node,
    update(found) {
      versions = found;
      node.hidden = versions.length < 2;
      count.textContent = `${place() + 1}/${versions.length}`;
      before.disabled = place() === 0;
      after.disabled = place() === versions.length - 1;
    },
  };
}

// Numbers of an answer, under the pointer or with the focus.
function factsView() {
  const node = element("span", "facts");
  const button = iconButton("facts", "Statistics", () => {});
  const tip = element("span", "tip");
  button.removeAttribute("title");
  tip.setAttribute("role", "tooltip");
  node.append(button, tip);
  return {
    node,
    update({ stats, model }) {
      node.hidden = !stats;
      if (!stats) return;
      const lines = [
        `${stats.tokens} tokens in ${seconds(stats.seconds)}, after a prompt of ${stats.prompt}`,
        `first token after ${seconds(stats.first)}`,
        stats.rate && `${Math.round(stats.rate).toLocaleString("en")} tokens/s`,
        `temperature ${stats.temperature}${stats.seed === null || stats.seed === undefined ? "" : `, seed ${stats.seed}`}`,
        model,
      ].filter(Boolean);
      tip.replaceChildren(...lines.map((line) => element("span", "", line)));
      button.setAttribute("aria-label", `Statistics: ${lines.join("; ")}`);
    },
  };
}

function seconds(value) {
  return value < 0.1 ? `${Math.max(1, Math.round(value * 1000))} ms` : `${value.toFixed(value < 10 ? 1 : 0)} s`;
}

// Puts an editor in place of a message of the user; calls `send(text)` or `cancel()`.
export function editMessage(node, text, send, cancel) {
  const editor = element("form", "editor");
  const field = element("textarea");
  const bar = element("div", "bar");
  field.value = text;
  field.dir = "auto";
  field.setAttribute("aria-label", "Message to edit");
  bar.append(textButton("Cancel", cancel, "plain"), element("button", "primary", "Send"));
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
