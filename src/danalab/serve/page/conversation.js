// The conversation that is shown: its tree, what is done with its messages, and their nodes on the page.

import { isWriting, live, stop, stopAll, write, writtenElsewhere } from "./answers.js";
import { titleOf } from "./archive.js";
import { $, element } from "./dom.js";
import { editMessage, messageView } from "./message.js";
import { loadMessages, save } from "./store.js";
import { newConversation, newMessage, Tree } from "./tree.js";

// `context`: functions {models, chosen, settings, key, kept, drawn}: names of the models, the chosen one, what requests
// need; `kept(conversation)` is called when it is stored for the first time, `drawn()` after each drawing.
export class Thread {
  constructor(context) {
    this.context = context;
    this.trees = new Map(); // by the conversation's id: of that which is shown, and of those that are being written
    this.views = new Map();
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
    this.views.clear();
    if (!this.tree.get(conversation.leaf)) conversation.leaf = this.newest(null);
    await this.findElsewhere();
    this.draw();
    this.scrollToEnd();
  }

  async treeOf(conversation) {
    const known = this.trees.get(conversation.id);
    if (known) return known;
    const made = new Tree(await loadMessages(conversation.id));
    this.trees.set(conversation.id, made);
    return made;
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
    if (this.isComparison) this.picked.set(message.parent + message.model, other.id);
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
    if (this.isComparison && message.role === "assistant") this.picked.set(message.parent + message.model, version.id);
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
    return versions.find(({ id }) => id === this.picked.get(question.id + model)) ?? versions.at(-1);
  }

  // Answers go on that were being written when the page was left.
  async resume({ conversation, message: left }) {
    const tree = await this.treeOf(conversation);
    if (!tree.get(left.id)) tree.add(left);
    const message = Object.assign(tree.get(left.id), left);
    await save(conversation, [message]);
    const shown = this.current;
    this.current = conversation;
    this.answer(message);
    this.current = shown;
  }

  // Another tab has changed the conversation.
  async reload(conversation) {
    const tree = this.trees.get(conversation.id);
    if (!tree) return;
    for (const stored of await loadMessages(conversation.id)) {
      if (live.has(stored.id)) continue;
      const known = tree.get(stored.id);
      if (known) Object.assign(known, { error: undefined }, stored);
      else tree.add(stored);
    }
    if (conversation.id !== this.current.id) return;
    if (!this.isWriting && !document.querySelector(".editing")) this.current.leaf = this.newest(this.current.leaf);
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
    const nodes = this.isComparison ? path.flatMap((question) => [this.node(question), this.columns(question)]) : path.map((each) => this.node(each));
    const shown = $("messages");
    if (nodes.length !== shown.children.length || nodes.some((node, place) => node !== shown.children[place])) shown.replaceChildren(...nodes);
    for (const message of this.shownMessages()) this.update(message);
    shown.setAttribute("aria-busy", String(this.isWriting));
    if (follow) this.scrollToEnd();
    this.context.drawn();
  }

  shownMessages() {
    if (!this.isComparison) return this.path;
    return this.path.flatMap((question) => [question, ...this.modelsOf(question).map((model) => this.shown(question, model))]);
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
    const key = `columns ${question.id}`;
    if (!this.views.has(key)) {
      const node = element("li", "compare");
      node.append(element("div", "columns"));
      this.views.set(key, { node });
    }
    const { node } = this.views.get(key);
    const nodes = this.modelsOf(question).map((model) => this.node(this.shown(question, model)));
    const grid = node.firstChild;
    if (nodes.length !== grid.children.length || nodes.some((each, place) => each !== grid.children[place])) grid.replaceChildren(...nodes);
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
      showsModel: this.isComparison || this.hasSeveralModels(),
    });
  }

  hasSeveralModels() {
    return new Set(this.path.map(({ model }) => model).filter(Boolean)).size > 1;
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

async function copy({ content }) {
  try {
    await navigator.clipboard.writeText(content);
    return true;
  } catch {
    return false;
  }
}
