// The models of the server: which one answers, and a card of each with its run and a small curve.

import { $, element, icon, svg } from "./dom.js";

export const COMPARE = "*"; // in place of a model's name: all of them, side by side

const STAGES = new Map([["base", "base model"], ["mid", "mid-training"], ["sft", "fine-tuned"], ["rl", "reinforcement learning"]]);
const METRICS = new Map([["val/loss", "validation loss"], ["train/loss", "training loss"], ["rl/reward", "reward"]]);

// The curve of a card as a line without axes.
function curve({ points, metric }, color, width, height, label) {
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const scale = (values, size) => {
    const low = Math.min(...values);
    const span = Math.max(...values) - low || 1;
    return (value) => 2 + ((value - low) / span) * (size - 4);
  };
  const [x, y] = [scale(xs, width), scale(ys, height)];
  const line = svg("polyline", { points: points.map(([a, b]) => `${x(a).toFixed(1)},${(height - y(b)).toFixed(1)}`).join(" ") });
  line.style.setProperty("--mark", color);
  const kind = label ? { role: "img", "aria-label": `${METRICS.get(metric) ?? metric} from ${short(ys[0])} to ${short(ys.at(-1))}` } : { "aria-hidden": "true" };
  return svg("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", ...kind }, line);
}

export function short(value) {
  if (!Number.isFinite(value)) return "";
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  return String(Number(value.toPrecision(3)));
}

// The button in the header that opens the cards.
export function showHeaderCard(runs, chosen) {
  const button = $("card");
  const run = runs.find(({ id }) => id === chosen) ?? runs.at(-1);
  button.hidden = !run;
  if (!run) return;
  const isAll = chosen === COMPARE;
  const facts = isAll ? [`${runs.length} models`] : [run.params && short(run.params), run.optimizer, run.step !== null && `step ${run.step.toLocaleString("en")}`];
  const text = element("span", "words");
  if (runs.length === 1) text.append(element("strong", "", run.id), " ");
  text.append(element("span", "", facts.filter(Boolean).join(" · ")));
  const sign = icon("facts");
  sign.classList.add("only-narrow");
  button.replaceChildren(sign, text);
  if (run.curve && !isAll) button.append(curve(run.curve, run.color, 64, 22, false));
  button.setAttribute("aria-label", `About the ${runs.length > 1 ? "models" : `model ${run.id}`}: ${facts.filter(Boolean).join(", ")}`);
}

export function showCards(runs) {
  $("cards").replaceChildren(...runs.map(card));
}

export function card(run) {
  const node = element("article", "card");
  const head = element("h3", "", run.id);
  if (run.stage) head.append(" ", element("small", "", STAGES.get(run.stage) ?? run.stage));
  const list = element("dl");
  const rows = [
    ["size", `${short(run.params)} parameters`],
    ["model", `${run.arch}, ${run.layers} layers of ${run.width}`],
    ["context", `${run.max_model_len.toLocaleString("en")} tokens`],
    ["optimizer", run.optimizer && `${run.optimizer}${run.lr ? `, peak rate ${short(run.lr)}` : ""}`],
    ["step", run.step !== null && `${run.step.toLocaleString("en")}${run.steps ? ` of ${run.steps.toLocaleString("en")}` : ""}`],
  ];
  for (const [name, value] of rows.filter(([, text]) => text && !text.startsWith("undefined")))
    list.append(element("dt", "", name), element("dd", "", value));
  node.append(head, list);
  if (run.curve) {
    const ys = run.curve.points.map(([, y]) => y);
    const figure = element("figure");
    figure.append(
      curve(run.curve, run.color, 240, 60, true),
      element("figcaption", "", `${METRICS.get(run.curve.metric) ?? run.curve.metric}: ${short(ys[0])} to ${short(ys.at(-1))}`),
    );
    node.append(figure);
  }
  return node;
}

// The selector, where there is a choice. Returns what is chosen.
export function showSelector(runs, wanted) {
  const select = $("model");
  select.hidden = runs.length < 2;
  select.replaceChildren(...runs.map(({ id }) => new Option(id, id)));
  if (runs.length > 1) select.append(new Option("compare", COMPARE));
  const known = [...select.options].some(({ value }) => value === wanted);
  select.value = known ? wanted : (runs.at(-1)?.id ?? "");
  return select.value;
}

// Questions to begin with: those of the model's tasks, or of the others' where it has none.
export function examplesOf(runs, chosen) {
  const own = runs.find(({ id }) => id === chosen)?.examples ?? [];
  return own.length ? own : (runs.find(({ examples }) => examples?.length)?.examples ?? []);
}
