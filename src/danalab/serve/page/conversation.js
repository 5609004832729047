// The conversation that is shown: its tree, what is done with its messages, and their nodes on the page.

import { isWriting, live, stop, stopAll, write, writtenElsewhere } from "./answers.js";
import { titleOf } from "./archive.js";
import { $, element, textButton } from "./dom.js";
import { editMessage, messageView } from "./message.js";
import { extent, loadMessages, save } from "./store.js";
import { newConversation, newMessage, Tree } from "./tree.js";

// `context`: functions {models, chosen, settings, key, kept, drawn}: names of the models, the chosen one, what requests
// need; `kept(conversation)` is called when it is stored for the first time, `drawn()` after each drawing.
const SHOWN = 100; // messages of a conversation that are drawn at first, and more at each wish

export class Thread {
  constructor(context) {
    this.context = context;
    this.trees = new Map(); // by the conversation's id: of that which is shown, and of those that are being written
    this.views = new Map();
    this.grids = new Map(); // of comparisons, by question
    this.limit = SHOWN;
    this.earlier = element("li", "earlier");
    this.earlier.append(textButton("", () => this.showEarlier(), "plain"));
    this.picked = new Map(); // in comparisons, the version that is shown: by question and model
    this.elsewhere = new Set();
    this.current = newConversation();
    this.trees.set(this.current.id, new Tree());
  }

  get tree() {
    return this.trees.get(this.current.id);
  }

  get isComparison() {
    return this.current.kind === "compare";
  }

  get isWriting() {
    return isWriting(this.current);
  }

  // The messages that are shown; of a comparison the questions.
  get path() {
    return this.tree.path(this.current.leaf);
  }

  async open(conversation) {
    await this.treeOf(conversation);
    for (const id of this.trees.keys()) if (id !== conversation.id && !isWriting({ id })) this.trees.delete(id);
    this.current = conversation;
    this.limit = SHOWN;
    this.views.clear();
    this.grids.clear();
    conversation.leaf = this.newest(this.tree.get(conversation.leaf) ? conversation.leaf : null);
    await this.findElsewhere();
    this.draw();
    this.scrollToEnd();
  }

  async treeOf({ id }) {
    if (!this.trees.has(id)) {
      const made = new Tree();
      this.trees.set(id, made); // before reading: another tab may write meanwhile
      made.loaded = loadMessages(id).then((found) => found.filter((each) => !made.get(each.id)).forEach((each) => made.add(each)));
    }
    await this.trees.get(id).loaded;
    return this.trees.get(id);
  }

  newest(from) {
    return this.tree.newest(from, this.isComparison ? "user" : null);
  }

  // ---- what a person does ----

  ask(text, parent = this.current.leaf) {
    const question = newMessage(this.current, parent, "user", { content: text });
    if (!this.current.title) Object.assign(this.current, { title: titleOf(text) });
    this.current.updated = Date.now();
    this.add(question);
    save(this.current, [question]);
    this.context.kept(this.current);
    const models = this.isComparison ? this.context.models() : [this.context.chosen()];
    for (const model of models) this.answer(newMessage(this.current, question.id, "assistant", { model }));
    this.draw();
    this.scrollToEnd();
  }

  again(message) {
    stop(message.id);
    const model = this.isComparison ? message.model : this.context.chosen();
    const other = newMessage(this.current, message.parent, "assistant", { model });
    if (this.isComparison) this.picked.set(placeOf(message), other.id);
    this.answer(other);
    this.draw();
  }

  edit(message) {
    const { node } = this.views.get(message.id);
    const resend = (text) => {
      this.views.delete(message.id); // the editor stands in its node
      stopAll(this.current);
      this.ask(text, message.parent);
      $("prompt").focus();
    };
    editMessage(node, message.content, resend, () => {
      this.views.delete(message.id);
      this.draw();
      this.views.get(message.id).node.querySelector("button:not([hidden])").focus();
    });
  }

  carryOn(message) {
    this.answer(message);
  }

  turn(message, version) {
    if (this.isComparison && message.role === "assistant") this.picked.set(placeOf(message), version.id);
    else this.current.leaf = this.newest(version.id);
    save(this.current);
    this.draw();
    this.views.get(version.id)?.node.scrollIntoView({ block: "nearest" });
  }

  stop() {
    stopAll(this.current);
  }

  // ---- answers ----

  add(message) {
    this.tree.add(message);
    if (!this.isComparison || message.role === "user") this.current.leaf = message.id;
  }

  answer(message) {
    const [conversation, models] = [this.current, this.context.models()];
    if (!models.includes(message.model)) message.model = this.context.chosen();
    if (!this.tree.get(message.id)) this.add(message);
    write(conversation, this.before(message), message, this.context.settings(), this.context.key());
  }

  // What a model has seen when it begins to write.
  before(message) {
    const path = this.tree.path(message.parent);
    if (!this.isComparison) return path;
    return path.flatMap((question) => (question.id === message.parent ? [question] : [question, this.shown(question, message.model)])).filter(Boolean);
  }

  // Of a comparison: a model's answer to a question.
  shown(question, model) {
    const versions = this.tree.children(question.id, "assistant").filter((each) => each.model === model);
    return versions.find(({ id }) => id === this.picked.get(placeOf({ parent: question.id, model }))) ?? versions.at(-1);
  }

  // Answers go on that were being written when the page was left.
  async resume({ conversation, message: left }) {
    const tree = await this.treeOf(conversation);
    if (!tree.get(left.id)) tree.add(left);
    const message = tree.get(left.id);
    if (extent(left) > extent(message)) Object.assign(message, left);
    const shown = this.current;
    this.current = conversation;
    this.answer(message);
    this.current = shown;
  }

  // Another tab, or a file, has changed messages.
  async merge(messages) {
    for (const each of messages) if (!live.has(each.id)) this.trees.get(each.conversation)?.add(each);
    if (!messages.some(({ conversation }) => conversation === this.current.id)) return;
    this.current.leaf = this.newest(this.current.leaf);
    await this.findElsewhere();
    this.draw();
  }

  async findElsewhere() {
    if ([...this.tree.byId.values()].some(({ id, state }) => state === "writing" && !live.has(id))) this.elsewhere = await writtenElsewhere();
    else this.elsewhere.clear();
  }

  // ---- drawing ----

  draw() {
    const follow = this.isAtEnd();
    const path = this.path;
    const drawn = path.slice(-this.limit);
    const nodes = drawn.flatMap((each) => (this.isComparison ? [this.node(each), this.columns(each)] : [this.node(each)]));
    if (drawn.length < path.length) nodes.unshift(this.earlier);
    this.earlier.firstChild.textContent = `Show earlier messages (${(path.length - drawn.length).toLocaleString("en")})`;
    this.showsModel = this.isComparison || new Set(path.map(({ model }) => model).filter(Boolean)).size > 1;
    placeChildren($("messages"), nodes);
    for (const message of drawn) {
      this.update(message);
      if (this.isComparison) for (const model of this.modelsOf(message)) this.update(this.shown(message, model));
    }
    $("messages").setAttribute("aria-busy", String(this.isWriting));
    if (follow) this.scrollToEnd();
    this.context.drawn();
  }

  showEarlier() {
    const first = this.earlier.nextSibling;
    this.limit += SHOWN;
    this.draw();
    first.scrollIntoView({ block: "start", behavior: "instant" });
  }

  view(message) {
    if (!this.views.has(message.id)) {
      const actions = { copy, edit: (each) => this.edit(each), again: (each) => this.again(each), carryOn: (each) => this.carryOn(each),
        turn: (each, version) => this.turn(each, version) };
      const tag = this.isComparison && message.role === "assistant" ? "div" : "li";
      this.views.set(message.id, messageView(message, actions, tag));
    }
    return this.views.get(message.id);
  }

  node(message) {
    return this.view(message).node;
  }

  modelsOf(question) {
    const names = new Set(this.tree.children(question.id, "assistant").map(({ model }) => model));
    const known = this.context.models();
    return [...known.filter((name) => names.has(name)), ...[...names].filter((name) => !known.includes(name))];
  }

  // The answers to a question, side by side.
  columns(question) {
    if (!this.grids.has(question.id)) {
      const made = element("li", "compare");
      made.append(element("div", "columns"));
      this.grids.set(question.id, made);
    }
    const node = this.grids.get(question.id);
    placeChildren(node.firstChild, this.modelsOf(question).map((model) => this.node(this.shown(question, model))));
    return node;
  }

  update(message) {
    const view = this.views.get(message.id);
    if (!view || view.node.classList.contains("editing")) return;
    const isLast = this.isComparison ? message.parent === this.current.leaf : message.id === this.current.leaf;
    view.update({
      versions: this.tree.versions(message, this.current.kind),
      isWriting: live.has(message.id),
      isElsewhere: this.elsewhere.has(message.id) && message.state === "writing",
      isLast,
      showsModel: this.showsModel,
    });
  }

  // A piece of an answer has come.
  grown(message) {
    if (message.conversation !== this.current.id) return;
    this.frames ??= new Set();
    this.frames.add(message);
    this.frame ||= requestAnimationFrame(() => {
      const follow = this.isAtEnd();
      for (const each of this.frames) this.update(each);
      this.frames.clear();
      this.frame = 0;
      if (follow) this.scrollToEnd();
    });
  }

  isAtEnd() {
    const main = $("main");
    return main.scrollHeight - main.scrollTop - main.clientHeight < 80;
  }

  scrollToEnd(behavior = "instant") {
    $("main").scrollTo({ top: $("main").scrollHeight, behavior });
  }
}

// The place of a model's answers to a question.
function placeOf({ parent, model }) {
  return JSON.stringify([parent, model]);
}

// Makes `nodes` the children; those that stay are not moved: an editor among them keeps the focus.
function placeChildren(parent, nodes) {
  const staying = new Set(nodes);
  for (const each of [...parent.children]) if (!staying.has(each)) each.remove();
  for (const [place, node] of nodes.entries()) if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
}

async function copy({ content }) {
  try {
    await navigator.clipboard.writeText(content);
    return true;
  } catch {
    return false;
  }
}
