// A conversation as a tree: each message names the one before it, and what has several answers, or an edited question,
// has several messages after it. One path through the tree is shown.
//
//   message       {id, conversation, parent, role, content, created, ...}; answers also have {model, state, sums, tokens, stats}
//   state         writing, done, stopped, cut (at a limit), failed
//   sums          calculations: {expression, result, at}, after `at` characters of the content
//   conversation  {id, kind: chat | compare, title, titled, created, updated, leaf, deleted, changed}
//
// In a comparison the questions follow each other, and each has the answers of several models.

export function newId() {
  return crypto.randomUUID?.() ?? `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
}

export function newConversation(kind = "chat") {
  const now = Date.now();
  return { id: newId(), kind, title: "", titled: 0, created: now, updated: now, leaf: null, deleted: false, changed: now };
}

let last = 0;
export function newMessage(conversation, parent, role, more = {}) {
  last = Math.max(last + 1, Date.now()); // two of one moment keep their order
  return { id: newId(), conversation: conversation.id, parent, role, content: "", created: last, ...more };
}

// The messages of one conversation. One whose parent is not there is a beginning, so that all can be reached.
export class Tree {
  constructor() {
    this.byId = new Map();
    this.byParent = new Map();
  }

  get(id) {
    return this.byId.get(id);
  }

  // Adds a message, or what is new of one.
  add(message) {
    const known = this.get(message.id);
    if (known) return void Object.assign(known, { error: undefined }, message);
    this.byId.set(message.id, message);
    if (!this.byParent.has(message.parent)) this.byParent.set(message.parent, []);
    this.byParent.get(message.parent).push(message);
  }

  children(parent, role = null) {
    const found = this.byId.has(parent) ? (this.byParent.get(parent) ?? []) : [...this.byId.values()].filter((each) => !this.byId.has(each.parent));
    return found.filter((each) => !role || each.role === role).sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
  }

  // From the first message to `leaf`; what another page has written into the storage may have a circle.
  path(leaf) {
    const found = new Set();
    for (let each = this.get(leaf); each && !found.has(each); each = this.get(each.parent)) found.add(each);
    return [...found].reverse();
  }

  // The end of the newest branch from a message on, which null is the beginning of.
  newest(from, role = null) {
    const seen = new Set();
    for (;;) {
      const next = this.children(from, role).at(-1);
      if (!next || seen.has(next.id)) return from;
      seen.add(next.id);
      from = next.id;
    }
  }

  // Messages that stand in the same place: other answers, or other versions of a question.
  versions(message, kind) {
    const found = this.children(message.parent, message.role);
    return kind === "compare" && message.role === "assistant" ? found.filter(({ model }) => model === message.model) : found;
  }
}

const SENT = 300_000; // characters at most: more than a context has, and less than the server takes
const FRAME = 200; // characters that a message counts beside its text, so that they are at most 1,500

// A path as the API takes it: calculations are sent along, so that the model sees what it is trained on. Of a long one the
// end: the server leaves out the oldest turns too.
export function asSent(path) {
  let left = SENT;
  const from = path.findLastIndex(({ content, role }, place) => (left -= content.length + FRAME) < 0 && role === "assistant" && place < path.length - 1);
  return path
    .slice(from + 1)
    .filter(({ content, sums }) => content.trim() || sums?.length)
    .map(({ role, content, sums }) => {
      if (!sums?.length) return { role, content };
      const calculations = sums.map(({ expression, result, at }) => ({
        expression,
        result,
        position: [...content.slice(0, at)].length, // the server counts characters, not UTF-16
      }));
      return { role, content, calculations };
    });
}
