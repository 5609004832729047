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

// The messages of one conversation, by id.
export class Tree {
  constructor(messages = []) {
    this.byId = new Map(messages.map((each) => [each.id, each]));
  }

  get(id) {
    return this.byId.get(id);
  }

  add(message) {
    this.byId.set(message.id, message);
  }

  children(parent, role = null) {
    const found = [...this.byId.values()].filter((each) => each.parent === parent && (!role || each.role === role));
    return found.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
  }

  // From the first message to `leaf`; what another page has written into the storage may have a circle.
  path(leaf) {
    const found = [];
    const seen = new Set();
    for (let each = this.get(leaf); each && !seen.has(each.id); each = this.get(each.parent)) {
      seen.add(each.id);
      found.unshift(each);
    }
    return found;
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

// A path as the API takes it: calculations are sent along, so that the model sees what it is trained on.
export function asSent(path) {
  return path
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
