// Markdown as DOM nodes. A model's text is not trusted: it only ever becomes text nodes and attributes that are set here,
// links lead to http, https and mailto alone, and images are links.

import { element } from "./dom.js";
import { highlight } from "./highlight.js";
import { maths } from "./maths.js";

const DEEPEST = 8; // lists and quotes; a text of ten thousand ">" must not overflow the stack

const CHIP = /\uE000(\d+)\uE001/; // the place of a chip: these characters are taken out of what a model writes
const CHIPS = new RegExp(CHIP, "g");
let chips = [];

// Show `text` in `container`; blocks that have not changed keep their nodes, so a selection survives streaming.
// `sums`: calculations {expression, result, at}, which become chips in the text.
export function show(container, text, sums = []) {
  chips = sums;
  const blocks = split(withPlaces(text, sums).split("\n"));
  blocks.forEach((block, place) => {
    const old = container.childNodes[place];
    if (old?.source === block.source) return;
    const node = build(block, 0);
    node.source = block.source;
    if (old) old.replaceWith(node);
    else container.append(node);
  });
  while (container.childNodes.length > blocks.length) container.lastChild.remove();
}

// A calculation as it stands in an answer.
export function chip({ expression, result }) {
  const node = element("span", "sum", `${expression} = `);
  node.title = "calculated while the model wrote";
  node.append(element("b", "", result));
  return node;
}

function withPlaces(text, sums) {
  let marked = "";
  let done = 0;
  const clean = (end) => text.slice(done, end).replace(/[\uE000\uE001]/g, "\uFFFD");
  [...sums.entries()].sort((a, b) => a[1].at - b[1].at).forEach(([place, { at }]) => {
    marked += `${clean(Math.max(at, done))}\uE000${place}\uE001`;
    done = Math.max(at, done);
  });
  return marked + clean();
}

// For what can hold no chips: the text without their places, and the chips.
function takeChips(text) {
  const taken = [...text.matchAll(CHIPS)].map(([, place]) => chip(chips[place]));
  return [text.replace(CHIPS, ""), taken];
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const FORMULA = /^\s*(\$\$|\\\[)/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

// The top-level blocks of some lines.
function split(lines) {
  const blocks = [];
  let at = 0;
  const take = (kind, end, more = {}) => {
    const own = lines.slice(at, end);
    blocks.push({ kind, lines: own, source: `${kind}\n${own.join("\n")}`, ...more });
    at = end;
  };
  const until = (stop) => {
    let end = at + 1;
    while (end < lines.length && !stop(lines[end], end)) end++;
    return end;
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (!line.trim()) at++;
    else if (fence) {
      const closing = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
      take("code", Math.min(until((each) => closing.test(each)) + 1, lines.length), { language: fence[2], closing });
    } else if (FORMULA.test(line)) take("formula", formulaEnd(lines, at));
    else if (HEADING.test(line)) take("heading", at + 1);
    else if (RULE.test(line)) take("rule", at + 1);
    else if (QUOTE.test(line)) take("quote", until((each) => !QUOTE.test(each)));
    else if (ITEM.test(line)) take("list", listEnd(lines, at));
    else if (isTable(lines, at)) take("table", until((each) => !each.includes("|")));
    else take("paragraph", until((each, place) => !each.trim() || begins(each) || isTable(lines, place)));
  }
  return blocks;
}

function begins(line) {
  return [FENCE, FORMULA, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

// The line after a formula; an open one ends at the next empty line.
function formulaEnd(lines, start) {
  const close = FORMULA.exec(lines[start])[1] === "$$" ? "$$" : "\\]";
  for (let end = start; end < lines.length; end++) {
    const line = end === start ? lines[end].replace(FORMULA, "") : lines[end];
    if (line.includes(close)) return end + 1;
    if (!line.trim() && end > start) return end;
  }
  return lines.length;
}

function isTable(lines, at) {
  return lines[at].includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-");
}

function listEnd(lines, start) {
  const [, indent, mark] = ITEM.exec(lines[start]);
  let end = start + 1;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const next = ITEM.exec(line);
    if (next && next[1].length < indent.length + 2 && /\d/.test(next[2]) !== /\d/.test(mark)) return end; // another list
    if (line.trim() ? begins(line) && !ITEM.test(line) && !/^\s{2,}/.test(line) : !/^(\s{2,}\S|\s*([-*+]|\d{1,9}[.)])\s)/.test(lines[end + 1] ?? ""))
      return end;
  }
  return end;
}

function build(block, depth) {
  const { kind, lines } = block;
  if (kind === "code") return code(block);
  if (kind === "rule") return element("hr");
  if (kind === "table") return table(lines);
  if (kind === "formula") return formula(lines.join("\n"));
  if (kind === "heading") {
    const [, marks, text] = HEADING.exec(lines[0]);
    return inline(directed(`h${Math.min(marks.length + 2, 6)}`), text);
  }
  if (depth < DEEPEST && kind === "quote")
    return nested(directed("blockquote"), lines.map((line) => line.replace(QUOTE, "")), depth + 1);
  if (depth < DEEPEST && kind === "list") return list(lines, depth + 1);
  return inline(directed("p"), lines.join("\n"));
}

// A block whose own first letter says in which direction it is read.
function directed(tag, className) {
  const node = element(tag, className);
  node.dir = "auto";
  return node;
}

function formula(text) {
  const [, mark] = FORMULA.exec(text);
  const [source, taken] = takeChips(text.replace(FORMULA, ""));
  const close = mark === "$$" ? "$$" : "\\]";
  const end = source.indexOf(close);
  const node = scrollable(element("div", "formula"), "Formula", maths(end < 0 ? source : source.slice(0, end), true));
  node.append(...taken);
  const rest = end < 0 ? "" : source.slice(end + close.length).trim();
  return rest ? inline(node, rest) : node;
}

function nested(node, lines, depth) {
  node.append(...split(lines).map((block) => build(block, depth)));
  return node;
}

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(mark);
  const node = element(ordered ? "ol" : "ul");
  if (ordered && parseInt(mark, 10) !== 1) node.start = parseInt(mark, 10);
  let own = [];
  const close = () => own.length && node.append(item(own, depth));
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length < indent.length + 2) {
      close();
      own = [line.slice(found[0].length)];
    } else own.push(line.replace(new RegExp(`^\\s{0,${indent.length + mark.length + 1}}`), ""));
  }
  close();
  return node;
}

function item(lines, depth) {
  const node = directed("li");
  const task = /^\[([ xX])\]\s+/.exec(lines[0]);
  if (task) {
    const box = element("input");
    Object.assign(box, { type: "checkbox", disabled: true, checked: task[1] !== " " });
    box.setAttribute("aria-label", box.checked ? "done" : "to do");
    node.className = "task";
    node.append(box);
    lines = [lines[0].slice(task[0].length), ...lines.slice(1)];
  }
  const blocks = split(lines);
  for (const block of blocks) {
    if (block.kind === "paragraph") inline(node, block.lines.join("\n"));
    else node.append(build(block, depth));
  }
  return node;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map((each) => each.trim().replaceAll("\\|", "|"));
  const sides = cells(lines[1]).map((rule) => (/^:-+:$/.test(rule) ? "center" : /-:$/.test(rule) ? "right" : /^:/.test(rule) ? "left" : ""));
  const row = (line, tag) => {
    const node = element("tr");
    for (const [place, text] of cells(line).entries())
      node.append(inline(directed(tag, sides[place] ? `at-${sides[place]}` : ""), text));
    return node;
  };
  const head = element("thead");
  const body = element("tbody");
  head.append(row(lines[0], "th"));
  body.append(...lines.slice(2).map((line) => row(line, "td")));
  const node = element("table");
  node.append(head, body);
  return scrollable(element("div", "table"), "Table", node);
}

function code({ lines, language, closing }) {
  const closed = lines.length > 1 && closing.test(lines.at(-1));
  const [text, taken] = takeChips(lines.slice(1, closed ? -1 : undefined).join("\n"));
  const figure = element("figure", "code");
  figure.dir = "ltr";
  const caption = element("figcaption");
  const copy = element("button", "copy");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text).then(() => (copy.textContent = "Copied"), () => (copy.textContent = "No access"));
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  caption.append(element("span", "language", language || "text"), ...taken, copy);
  const content = highlight(element("code"), text, language);
  figure.append(caption, scrollable(element("pre"), `Code${language ? `, ${language}` : ""}`, content));
  return figure;
}

// Wide content scrolls sideways, with the keyboard as well.
function scrollable(node, label, content) {
  node.tabIndex = 0;
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", label);
  node.append(content);
  return node;
}

// ---- inside of a block ----

const SPECIAL = /[\\`*_~[!<\n$\uE000]|https?:\/\//g;
const URL_TEXT = /^https?:\/\/[^\s<>"'`\uE000]+[^\s<>"'`.,;:!?)\]}\uE000]/;
const PAIRS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

function inline(node, text, depth = 0) {
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) node.append(plain);
    plain = "";
  };
  const add = (child, length) => {
    flush();
    node.append(child);
    at += length;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at === text.length) break;
    const rest = text.slice(at, at + 4000);
    const place = CHIP.exec(rest);
    const found = depth < DEEPEST && (formulaIn(rest) ?? escape(rest) ?? span(rest) ?? link(rest) ?? paired(rest, text[at - 1] ?? " ", depth));
    if (place?.index === 0) add(chip(chips[place[1]]), place[0].length);
    else if (found) add(...found);
    else if (text[at] === "\n") add(element("br"), 1);
    else plain += text[at++];
  }
  flush();
  return node;
}

// \( x \) and $x$; a dollar before a space or a digit is money.
function formulaIn(rest) {
  const found = /^\\\(([^]+?)\\\)/.exec(rest) ?? /^\$([^\s$](?:[^$\n]*[^\s$\\])?)\$(?!\d)/.exec(rest);
  if (!found || CHIP.test(found[1])) return null;
  return [maths(found[1], false), found[0].length];
}

function escape(rest) {
  return /^\\[!-/:-@[-`{-~]/.test(rest) ? [document.createTextNode(rest[1]), 2] : null;
}

function span(rest) {
  const marks = /^`+/.exec(rest)?.[0];
  if (!marks) return null;
  const end = rest.indexOf(marks, marks.length);
  if (end < 0) return [document.createTextNode(marks), marks.length];
  const [text, taken] = takeChips(rest.slice(marks.length, end));
  const node = element("code", "", text.trim());
  if (!taken.length) return [node, end + marks.length];
  const both = element("span");
  both.append(...taken, node);
  return [both, end + marks.length];
}

function link(rest) {
  const url = URL_TEXT.exec(rest)?.[0];
  if (url) return [anchor(url, url) ?? document.createTextNode(url), url.length];
  const found = /^!?\[([^[\]\n]{0,300})\]\(\s*<?([^\s()<>]{1,2000}(?:\([^\s()<>]*\)[^\s()<>]*)?)>?(?:\s+"[^"\n]*")?\s*\)/.exec(rest);
  if (!found) return null;
  if (CHIP.test(found[0])) return null;
  const node = anchor(found[1] || found[2], found[2]);
  return node && [node, found[0].length];
}

function anchor(text, address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  const node = element("a", "", text);
  node.href = url.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  return node;
}

function paired(rest, before, depth) {
  for (const [mark, tag] of PAIRS) {
    if (!rest.startsWith(mark) || /\s/.test(rest[mark.length] ?? " ")) continue;
    if (mark[0] === "_" && /\w/.test(before)) return null; // snake_case
    for (let end = mark.length + 1; (end = rest.indexOf(mark, end)) > 0; end++) {
      const after = rest[end + mark.length] ?? " ";
      const doubled = mark.length === 1 && (after === mark || rest[end - 1] === mark);
      if (/\s/.test(rest[end - 1]) || doubled || (mark[0] === "_" && /\w/.test(after))) continue;
      return [inline(element(tag), rest.slice(mark.length, end), depth + 1), end + mark.length];
    }
  }
  return null;
}
