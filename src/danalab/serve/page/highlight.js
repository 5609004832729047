// Colours for code: comments, strings, numbers, keywords, names that are called. No parser; good enough to read by.

import { element } from "./dom.js";

const LONGEST = 50_000; // characters; more stays plain

const WORDS = {
  python:
    "and as assert async await break case class continue def del elif else except finally for from global if import in is " +
    "lambda match nonlocal not or pass raise return try while with yield None True False self",
  javascript:
    "async await break case catch class const continue default delete do else export extends finally for from function if " +
    "import in instanceof interface let new null of return static super switch this throw try type typeof undefined var " +
    "void while yield true false",
  c:
    "auto bool break case catch char class const continue default delete do double else enum extern false final float fn for " +
    "func go goto if impl import inline int interface let long match mod mut namespace new nil null nullptr package private " +
    "protected pub public return short signed sizeof static string struct super switch template this throw trait true try " +
    "type typedef union unsigned use using var virtual void volatile where while",
  shell: "case do done echo elif else esac exit export fi for function if in local return set shift then unset until while cd",
  sql:
    "select from where and or not null insert into values update set delete create table drop alter index join left right " +
    "inner outer on as group by order having limit distinct union primary key references case when then else end with",
};
const HASH = String.raw`#.*`;
const SLASHES = String.raw`\/\/.*|\/\*[^]*?(?:\*\/|$)`;
const QUOTES = String.raw`"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?`;
const BACKTICK = "`(?:\\\\.|[^`\\\\])*`?";

const LANGUAGES = {
  python: language(HASH, String.raw`[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$))|[rbfuRBFU]{0,2}(?:${QUOTES})`, WORDS.python),
  javascript: language(SLASHES, `${QUOTES}|${BACKTICK}`, WORDS.javascript),
  c: language(SLASHES, QUOTES, WORDS.c),
  shell: language(String.raw`(?<=^|\s)#.*`, QUOTES, WORDS.shell),
  sql: language(String.raw`--.*|\/\*[^]*?(?:\*\/|$)`, QUOTES, WORDS.sql),
  json: language("", QUOTES, "true false null"),
  yaml: language(String.raw`(?<=^|\s)#.*`, QUOTES, "true false null yes no"),
  html: language(String.raw`<!--[^]*?(?:-->|$)`, QUOTES, "", String.raw`<\/?[A-Za-z][\w:-]*|\/?>`),
  css: language(String.raw`\/\*[^]*?(?:\*\/|$)`, QUOTES, "", String.raw`@[\w-]+|--?[\w-]+(?=\s*:)|\b[\w-]+(?=\s*:\s)`),
};
const NAMES = {
  py: "python", python3: "python", js: "javascript", jsx: "javascript", ts: "javascript", tsx: "javascript",
  typescript: "javascript", cpp: "c", "c++": "c", cc: "c", h: "c", cuda: "c", java: "c", rust: "c", rs: "c", go: "c",
  kotlin: "c", swift: "c", cs: "c", php: "c", sh: "shell", bash: "shell", zsh: "shell", console: "shell", jsonl: "json",
  yml: "yaml", toml: "yaml", ini: "yaml", xml: "html", svg: "html", scss: "css",
};

function language(comment, string, words, keyword = "") {
  const known = words && String.raw`\b(?:${words.replaceAll(" ", "|")})\b`;
  const parts = {
    comment,
    string,
    keyword: [keyword, known].filter(Boolean).join("|"),
    number: String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.[\d_]+)?(?:[eE][-+]?\d+)?)`,
    called: String.raw`\b[A-Za-z_]\w*(?=\()`,
  };
  const named = Object.entries(parts).filter(([, pattern]) => pattern);
  return new RegExp(named.map(([name, pattern]) => `(?<${name}>${pattern})`).join("|"), "gm" + (words === WORDS.sql ? "i" : ""));
}

// Appends `code` to `node` in coloured pieces; plain where the language is not known.
export function highlight(node, code, name) {
  const given = name.toLowerCase();
  const pattern = LANGUAGES[NAMES[given] ?? given];
  if (!pattern || code.length > LONGEST) {
    node.append(code);
    return node;
  }
  let at = 0;
  for (const match of code.matchAll(pattern)) {
    if (!match[0]) continue;
    const kind = Object.keys(match.groups).find((group) => match.groups[group] !== undefined);
    node.append(code.slice(at, match.index), element("span", `is-${kind}`, match[0]));
    at = match.index + match[0].length;
  }
  node.append(code.slice(at));
  return node;
}
