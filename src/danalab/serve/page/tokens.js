// An answer as the tokens that it consists of, coloured by their probability; under the pointer, or with the focus, the
// tokens that were as likely.

import { $, element } from "./dom.js";
import { chip } from "./markdown.js";

const STEPS = [0.05, 0.25, 0.5, 0.8]; // limits of the colours

// Fills `container` with the tokens [text, probability, at, alternatives] of a message.
export function showTokens(container, { tokens = [], sums = [] }) {
  const places = [...sums].sort((a, b) => a.at - b.at);
  const nodes = [];
  for (const token of tokens) {
    while (places.length && places[0].at <= token[2]) nodes.push(chip(places.shift()));
    nodes.push(tokenButton(token));
  }
  nodes.push(...places.map(chip));
  container.replaceChildren(...nodes);
  const buttons = container.querySelectorAll(".token");
  if (buttons.length) buttons[0].tabIndex = 0; // the arrow keys reach the others
}

function tokenButton([text, chance, , top]) {
  const step = STEPS.findIndex((limit) => chance < limit);
  const node = element("button", `token p${step < 0 ? STEPS.length : step}`, visible(text));
  node.type = "button";
  node.tabIndex = -1;
  const others = top.filter(([other]) => other !== text).map(([other, share]) => `${named(other)} ${percent(share)}`);
  node.setAttribute("aria-label", `${named(text)} ${percent(chance)}${others.length ? `; instead ${others.join(", ")}` : ""}`);
  const open = () => showCard(node, text, chance, top);
  node.addEventListener("pointerenter", open);
  node.addEventListener("focus", open);
  node.addEventListener("click", open);
  for (const end of ["pointerleave", "blur"]) node.addEventListener(end, hideCard);
  return node;
}

export function moveAmongTokens(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const from = event.target.closest?.(".token");
  if (!step || !from) return;
  const all = [...from.parentElement.querySelectorAll(".token")];
  const next = all[all.indexOf(from) + step];
  if (!next) return;
  event.preventDefault();
  from.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function showCard(node, text, chance, top) {
  const card = $("token-card");
  const rows = top.some(([other]) => other === text) ? top : [...top, [text, chance]];
  const list = element("ul");
  for (const [other, share] of rows) {
    const row = element("li", other === text ? "chosen" : "");
    const bar = element("i");
    bar.style.width = `${Math.max(share * 100, 1)}%`;
    row.append(element("code", "", named(other)), element("span", "", percent(share)), bar);
    list.append(row);
  }
  card.replaceChildren(list);
  card.hidden = false;
  const box = node.getBoundingClientRect();
  const size = card.getBoundingClientRect();
  card.style.left = `${Math.max(8, Math.min(box.left, innerWidth - size.width - 8))}px`;
  card.style.top = `${box.bottom + size.height + 8 > innerHeight ? Math.max(8, box.top - size.height - 6) : box.bottom + 6}px`;
}

export function hideCard() {
  $("token-card").hidden = true;
}

function visible(text) {
  return text.replace(/\n/g, "⏎\n").replace(/^$/, "∅");
}

function named(text) {
  return text === "" ? "(nothing)" : text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
}

function percent(share) {
  return share >= 0.9995 ? "100%" : share < 0.001 ? "<0.1%" : `${(share * 100).toFixed(1)}%`;
}
