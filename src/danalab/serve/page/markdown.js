// Markdown as DOM nodes: markdown-it reads it, Temml and highlight.js fill formulas and code, DOMPurify lets through what
// text may consist of. A model's text is not trusted: HTML in it stays text, links lead to http, https and mailto only,
// images are links. A calculation, <<12*7=84>>, is a chip.

const { markdownit, DOMPurify, temml, hljs } = globalThis; // vendor/, loaded before this module

const LONGEST = 100_000; // characters of a text; a longer one, which a file may bring, is shown as it is
const LONGEST_FORMULA = 4000; // characters; a longer one stays text
const LONGEST_CODE = 50_000; // characters; more has no colours
const PURIFY = { RETURN_DOM_FRAGMENT: true, USE_PROFILES: { html: true, mathMl: true }, ADD_ATTR: ["target", "alttext"], FORBID_ATTR: ["id", "name", "style"] };
const READ_BY_ITS_FIRST_LETTER = new Set(["paragraph_open", "heading_open", "blockquote_open", "list_item_open", "th_open", "td_open"]);

// Show `text` in `container`; blocks that have not changed keep their nodes, so a selection survives streaming.
export function show(container, text) {
  try {
    if (text.length > LONGEST) throw new RangeError("the text is too long to be read as Markdown");
    showBlocks(container, text.replace(/\r\n?/g, "\n"));
  } catch (error) {
    console.warn(error); // a text that a library cannot read must not take the conversation with it
    container.replaceChildren(Object.assign(document.createElement("p"), { className: "as-written", textContent: text }));
  }
}

function showBlocks(container, source) {
  const env = {};
  const lines = source.split("\n");
  let place = 0;
  for (const tokens of blocks(markdown.parse(source, env))) {
    const key = `${lines.slice(...tokens[0].map).join("\n")}\n${Object.keys(env.references ?? {})}`;
    const old = container.childNodes[place++];
    if (old?.key === key) continue;
    const node = Object.assign(build(markdown.renderer.render(tokens, markdown.options, env)), { key });
    if (old) old.replaceWith(node);
    else container.append(node);
  }
  while (container.childNodes.length > place) container.lastChild.remove();
}

// The tokens of each top-level block.
function* blocks(tokens) {
  let start = 0;
  for (const [place, { level, nesting }] of tokens.entries()) {
    if (level || nesting > 0) continue;
    yield tokens.slice(start, place + 1);
    start = place + 1;
  }
}

// Styles are set by name: the page's security policy forbids them as text.
function build(html) {
  const fragment = DOMPurify.sanitize(html.replaceAll(' style="', ' data-style="'), PURIFY);
  for (const node of fragment.querySelectorAll("[data-style]")) {
    node.style.cssText = node.dataset.style;
    delete node.dataset.style;
  }
  return fragment.firstElementChild ?? Object.assign(document.createElement("p"), { textContent: fragment.textContent });
}

// ---- how markdown-it reads and writes ----

const markdown = markdownit({ breaks: true, linkify: true });
const { escapeHtml } = markdown.utils;
const { rules } = markdown.renderer;

markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
markdown.validateLink = (url) => /^(https?|mailto):/i.test(url);
markdown.inline.ruler.before("escape", "formula", inlineFormula);
markdown.inline.ruler.before("escape", "calculation", calculation);
markdown.block.ruler.before("fence", "formula", blockFormula, { alt: ["paragraph", "reference", "blockquote", "list"] });
markdown.core.ruler.push("page", ({ tokens, Token }) => tokens.forEach((token, place) => adapt(token, tokens[place + 2], Token)));
hljs.configure({ classPrefix: "is-" });

// `within`: the text of an item of a list.
function adapt(token, within, Token) {
  if (READ_BY_ITS_FIRST_LETTER.has(token.type)) token.attrSet("dir", "auto");
  if (token.type.startsWith("heading")) token.tag = `h${Math.min(Number(token.tag[1]) + 2, 6)}`; // the page has two of its own
  for (const each of token.children ?? [])
    if (each.type === "link_open") for (const pair of [["target", "_blank"], ["rel", "noopener noreferrer nofollow"]]) each.attrSet(...pair);
  const first = token.type === "list_item_open" && within?.type === "inline" && within.children[0];
  const task = /^\[([ xX])\]\s/.exec(first?.content ?? "");
  if (!task) return;
  token.attrSet("class", "task");
  first.content = first.content.slice(task[0].length);
  within.children.unshift(Object.assign(new Token("task", "", 0), { meta: task[1] !== " " }));
}

rules.task = (tokens, place) => {
  const isDone = tokens[place].meta;
  return `<input type="checkbox" disabled${isDone ? " checked" : ""} aria-label="${isDone ? "done" : "to do"}">`;
};
rules.calculation = (tokens, place) => {
  const [expression, result] = tokens[place].meta.map(escapeHtml);
  return `<span class="sum" title="calculated while the model wrote">${expression} = <b>${result}</b></span>`;
};
rules.image = (tokens, place) => {
  const source = escapeHtml(tokens[place].attrGet("src"));
  return `<a href="${source}" target="_blank" rel="noopener noreferrer nofollow">${escapeHtml(tokens[place].content) || source}</a>`;
};
rules.table_open = () => `${scrollable("div", "table", "Table")}<table>`;
rules.table_close = () => "</table></div>";
rules.code_block = rules.fence = (tokens, place) => {
  const [language] = tokens[place].info.trim().split(/\s+/);
  const text = tokens[place].content.replace(/\n$/, "");
  const isKnown = hljs.getLanguage(language) && text.length <= LONGEST_CODE;
  const code = isKnown ? hljs.highlight(text, { language, ignoreIllegals: true }).value : escapeHtml(text);
  return `<figure class="code" dir="ltr"><figcaption><span class="language">${escapeHtml(language || "text")}</span>` +
    `<button type="button" class="copy">Copy</button></figcaption>${scrollable("pre", "", `Code${language && `, ${language}`}`)}<code>${code}</code></pre></figure>`;
};
rules.formula = (tokens, place) => {
  const { content, block, meta } = tokens[place];
  const math = formula(content.trim(), meta);
  return block ? `${scrollable("div", "formula", "Formula")}${math}</div>` : math;
};

// Wide content scrolls sideways, with the keyboard as well.
function scrollable(tag, className, label) {
  return `<${tag} class="${className}" tabindex="0" role="group" aria-label="${escapeHtml(label)}">`;
}

// What Temml cannot read, or not yet, stays as it is written.
function formula(source, isDisplay) {
  try {
    if (source.length > LONGEST_FORMULA) throw new RangeError();
    const math = temml.renderToString(source, { displayMode: isDisplay, throwOnError: true, maxSize: [25, 100], maxExpand: 300 });
    return math.replace(/^<math/, () => `<math alttext="${escapeHtml(source)}"`);
  } catch {
    return `<code>${escapeHtml(source)}</code>`;
  }
}

function calculation(state, silent) {
  const pattern = /<<([^<>=]+)=([^<>=]*)>>/y;
  pattern.lastIndex = state.pos;
  const found = pattern.exec(state.src);
  if (!found || pattern.lastIndex > state.posMax) return false;
  if (!silent) Object.assign(state.push("calculation", "", 0), { meta: found.slice(1) });
  state.pos = pattern.lastIndex;
  return true;
}

// $$ x $$, \[ x \], \( x \) and $x$; a dollar before a space or a digit is money.
const FORMULAS = [/\$\$([^$]{1,4000}?)\$\$/y, /\\\[([^]{1,4000}?)\\\]/y, /\\\(([^]{1,4000}?)\\\)/y, /\$([^\s$](?:[^$\n]{0,4000}[^\s$\\])?)\$(?!\d)/y];

function inlineFormula(state, silent) {
  if (!"$\\".includes(state.src[state.pos])) return false;
  for (const [kind, pattern] of FORMULAS.entries()) {
    pattern.lastIndex = state.pos;
    const found = pattern.exec(state.src);
    if (!found || pattern.lastIndex > state.posMax) continue;
    if (!silent) Object.assign(state.push("formula", "math", 0), { content: found[1], meta: kind < 2 });
    state.pos = pattern.lastIndex;
    return true;
  }
  return false;
}

// A formula that begins a line. One that is open, as while it is written, ends at the next empty line.
function blockFormula(state, start, end, silent) {
  const line = (number) => state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]);
  const close = { "$$": "$$", "\\[": "\\]" }[line(start).slice(0, 2)];
  if (!close) return false;
  let last = line(start).slice(2);
  let content = last;
  let next = start + 1;
  while (!last.includes(close) && next < end && !state.isEmpty(next) && state.sCount[next] >= state.blkIndent) {
    last = line(next++);
    content += `\n${last}`;
    if (content.length > LONGEST_FORMULA) return false;
  }
  const [inside, ...rest] = content.split(close);
  if (rest.join(close).trim()) return false; // text goes on after it
  if (silent) return true;
  Object.assign(state.push("formula", "math", 0), { block: true, content: inside, map: [start, next], meta: true });
  state.line = next;
  return true;
}

document.addEventListener("click", async ({ target }) => {
  if (!target.matches(".content .copy")) return;
  const text = target.closest("figure").querySelector("pre").textContent;
  target.textContent = await navigator.clipboard.writeText(text).then(() => "Copied", () => "No access");
  setTimeout(() => (target.textContent = "Copy"), 1500);
});
