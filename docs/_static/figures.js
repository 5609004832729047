// The guide's moving figures. Arithmetic first, as pure functions (tests run them in node beside the Python of
// docs/_tooling/moving.py), then drawing. Without this file the pages show the static pictures.
"use strict";

const ARITHMETIC = {
  // ADana's schedule at step t: beta, alpha and memory [steps].
  schedule({ delta, kappa, t }) {
    return { beta: t / (delta + t), alpha: (1 + t) ** (1 - kappa), memory: (delta + t) / delta };
  },

  // Expected loss on power-law features, step by step: "sgd", "momentum" (10 steps) or "log" (logarithmic time).
  features({ alpha, beta, batch, method, steps }) {
    const modes = 100, lam = [], a = [], b = [], c = [], losses = [];
    for (let j = 1; j <= modes; j++) {
      lam.push(j ** (-2 * alpha));
      a.push(j ** (-2 * beta));
      b.push(0);
      c.push(0);
    }
    const kappa = Math.min(1, 1 / (2 * alpha));
    for (let t = 0; t < steps; t++) {
      let loss = 0;
      for (let j = 0; j < modes; j++) loss += 0.5 * lam[j] * a[j];
      losses.push(loss);
      if (loss > 1e3) break;
      const keep = method === "log" ? 1 - 5.3 / (5.3 + t) : method === "momentum" ? 0.9 : 0;
      const own = method === "momentum" ? 0 : 0.3;
      const sum = method === "log" ? 0.15 * (1 + t) ** -kappa : method === "momentum" ? 0.03 : 0;
      for (let j = 0; j < modes; j++) {
        const gg = lam[j] ** 2 * a[j] * (1 + 1 / batch) + (2 * loss * lam[j]) / batch;
        const ey = keep * b[j] + lam[j] * a[j], gy = keep * lam[j] * b[j] + gg;
        const yy = keep ** 2 * c[j] + 2 * keep * lam[j] * b[j] + gg;
        a[j] += -2 * own * lam[j] * a[j] + own ** 2 * gg + sum ** 2 * yy - 2 * sum * ey + 2 * sum * own * gy;
        b[j] = ey - own * gy - sum * yy;
        c[j] = yy;
      }
    }
    return losses;
  },

  // What is left of a weight that gets no gradient, after each of `points` equal parts of a run of `steps` steps.
  remaining({ omega, lr, steps, coupled, points }) {
    const left = [1];
    let share = 1;
    for (let i = 0; i < steps; i++) {
      const factor = 0.1 + 0.45 * (1 + Math.cos((Math.PI * i) / steps)), t = i + 1;
      const decay = coupled ? lr * coupled : Math.min(omega / (steps / 10 + t), 2 * lr);
      share *= 1 - factor * decay;
      if (Math.floor(((i + 1) * points) / steps) > Math.floor((i * points) / steps)) left.push(share);
    }
    return left;
  },

  // Mean age of the gradients in a momentum that follows peak s^power, s the rate's share, after each of `points` equal
  // parts of a run: logarithmic time at first, at least 1, and never more than one step older in a step.
  ages({ delta, peak, power, steps, points }) {
    const ages = [];
    let age = 0;
    for (let i = 0; i < steps; i++) {
      const t = i + 1, share = Math.max((1 + Math.cos((Math.PI * i) / steps)) / 2, 1e-3);
      age = Math.min(t / (delta + 1), Math.max(peak * share ** power, 1), 1 + age);
      if (Math.floor((t * points) / steps) > Math.floor((i * points) / steps)) ages.push(age);
    }
    return ages;
  },

  // Chance that a test at 5% finds a gap between two means of n seeds each.
  power({ gap, sigma, n }) {
    const z = gap / (sigma * Math.sqrt(2 / n));
    return normal(z - 1.959964) + normal(-z - 1.959964);
  },

  // Compute saved where losses are floor + (1 / C)^slope and the contender ends `gap` below the baseline.
  saved({ gap, reducible, slope }) {
    return gap < reducible ? 1 - (1 - gap / reducible) ** (1 / slope) : 1;
  },
};

// The distribution function of the standard normal; error below 1e-7 (Abramowitz and Stegun, 7.1.26 has 1.5e-7 for erf).
function normal(z) {
  const x = Math.abs(z) / Math.SQRT2, k = 1 / (1 + 0.3275911 * x);
  const tail = ((((1.061405429 * k - 1.453152027) * k + 1.421413741) * k - 0.284496736) * k + 0.254829592) * k;
  const erf = 1 - tail * Math.exp(-x * x);
  return z < 0 ? (1 - erf) / 2 : (1 + erf) / 2;
}

const range = (low, high, count) => Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));
const decades = (low, high, count) => range(Math.log10(low), Math.log10(high), count).map((x) => 10 ** x);
const short = (x) => (x !== 0 && (Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3) ? x.toExponential(1).replace(/(\.0)?e\+?/, "e") : String(+x.toPrecision(3)));
const percent = (x) => `${Math.round(100 * x)}%`;

// name -> controls {name: [label, low, high, value, "log" or step]} and draw(values) -> {lines, axes, says}
const FIGURES = {
  schedule: {
    controls: { delta: ["delta", 2, 32, 8, 1], kappa: ["kappa", 0.5, 1, 0.85, 0.01], t: ["step t", 1, 1e5, 1000, "log"] },
    draw({ delta, kappa, t }) {
      const steps = decades(1, 1e5, 80), now = ARITHMETIC.schedule({ delta, kappa, t });
      const of = (name) => steps.map((s) => [s, ARITHMETIC.schedule({ delta, kappa, t: s })[name]]);
      return {
        lines: [
          { name: "memory 1 / (1 - beta) [steps]", color: 0, points: of("memory") },
          { name: "alpha", color: 1, points: of("alpha") },
        ],
        mark: t, x: "step t", log: [true, true],
        says: `At step ${short(t)}: beta = ${now.beta.toFixed(4)}, memory ${short(now.memory)} steps, alpha = ${short(now.alpha)}.`,
      };
    },
  },
  features: {
    controls: { alpha: ["alpha, of the data", 0.6, 1.5, 1, 0.05], beta: ["beta, of the target", 0, 1, 0.3, 0.05],
      batch: ["batch", 1, 256, 1, "log"] },
    draw({ alpha, beta, batch }) {
      const steps = 1500, kinds = [["SGD", "sgd"], ["momentum of 10 steps", "momentum"], ["logarithmic time", "log"]];
      const lines = kinds.map(([name, method], color) => {
        const losses = ARITHMETIC.features({ alpha, beta, batch: Math.round(batch), method, steps });
        const at = [...new Set(decades(1, losses.length, 60).map((s) => Math.round(s)))];
        return { name, color, points: at.map((s) => [s, losses[s - 1]]), last: losses[losses.length - 1] };
      });
      const [sgd, , log] = lines;
      return { lines, x: "step", y: "loss", log: [true, true],
        says: `After ${steps} steps: SGD ${short(sgd.last)}, logarithmic time ${short(log.last)}, ${short(sgd.last / log.last)} times lower.` };
    },
  },
  remaining: {
    controls: { omega: ["omega", 0, 8, 4, 0.5], lr: ["peak learning rate", 1e-4, 1e-1, 1e-3, "log"],
      steps: ["length of the run T [steps]", 100, 1e4, 1000, "log"] },
    draw({ omega, lr, steps }) {
      const T = Math.round(steps), points = 50;
      const of = (coupled) => ARITHMETIC.remaining({ omega, lr, steps: T, coupled, points });
      const curve = (left) => left.map((share, i) => [(T * i) / (left.length - 1), share]);
      const log = of(0), constant = of(0.1);
      return {
        lines: [{ name: "omega / (T / 10 + t), at most 2 lr", color: 0, points: curve(log) },
          { name: "constant: 0.1 lr, as AdamW", color: 1, points: curve(constant) }],
        x: "step", y: "what is left of a weight", log: [false, false], low: 0, high: 1,
        says: `At the end ${percent(log[log.length - 1])} of a weight without a gradient is left; with a constant decay of 0.1, ${percent(constant[constant.length - 1])}.`,
      };
    },
  },
  ages: {
    controls: { peak: ["age at the peak rate [steps]", 1, 200, 20, "log"], power: ["power of the rate", -1, 1, -0.5, 0.25],
      steps: ["length of the run [steps]", 100, 1e4, 1000, "log"] },
    draw({ peak, power, steps }) {
      const T = Math.round(steps), points = 50, at = range(T / points, T, points);
      const of = (given) => ARITHMETIC.ages({ delta: 8, steps: T, points, ...given }).map((age, i) => [at[i], age]);
      const mine = of({ peak, power });
      return {
        lines: [{ name: "follows the rate", color: 0, points: mine }, { name: "logarithmic time", color: 1, points: of({ peak: 1e9, power: 0 }) },
          { name: "constant", color: 2, points: of({ peak, power: 0 }) }],
        x: "step", y: "mean age [steps]", log: [false, true],
        says: `Half way the mean age is ${short(mine[24][1])} steps, at the end ${short(mine[49][1])}; logarithmic time ends at ${short(T / 9)}.`,
      };
    },
  },
  power: {
    controls: { gap: ["gap between means", 0.001, 0.1, 0.02, "log"], sigma: ["deviation between seeds", 0.001, 0.1, 0.01, "log"],
      n: ["seeds on each side", 2, 20, 3, 1] },
    draw({ gap, sigma, n }) {
      const counts = range(2, 20, 19), now = ARITHMETIC.power({ gap, sigma, n });
      const needed = range(2, 1000, 999).find((m) => ARITHMETIC.power({ gap, sigma, n: m }) >= 0.8);
      return {
        lines: [{ name: "chance to find the gap", color: 0, points: counts.map((m) => [m, ARITHMETIC.power({ gap, sigma, n: m })]) },
          { name: "four times of five", color: 1, points: [[2, 0.8], [20, 0.8]] }],
        mark: n, x: "seeds on each side", log: [false, false], low: 0, high: 1,
        says: `${n} seeds find this gap ${percent(now)} of the time; four times of five takes ${needed ?? "more than 1,000"}.`,
      };
    },
  },
  saved: {
    controls: { gap: ["gap of the final losses [nats/token]", 0, 0.3, 0.05, 0.005],
      reducible: ["loss above the floor [nats/token]", 0.3, 3, 1, 0.05], slope: ["exponent of the law", 0.05, 0.5, 0.15, 0.01] },
    draw({ gap, reducible, slope }) {
      const share = ARITHMETIC.saved({ gap, reducible, slope }), C = decades(0.05, 1.2, 60);
      const base = C.map((x) => [x, reducible * x ** -slope]);
      const other = C.map((x) => [x, reducible * (x / (1 - share || 1)) ** -slope]);
      return {
        lines: [{ name: "baseline", color: 1, points: base }, { name: "contender", color: 0, points: other },
          { name: "saved", color: 2, points: [[1 - share, reducible], [1, reducible]] }],
        x: "compute, of the baseline's", y: "loss above the floor", log: [false, false],
        says: `A gap of ${short(gap)} nats/token is ${percent(share)} of the compute saved, or ${short(1 / (1 - share))} x as fast.`,
      };
    },
  },
};

// ---- drawing ----

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, parent, text) {
  const made = name in { svg: 1, path: 1, line: 1, text: 1, circle: 1 } ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function ticks(low, high, log) {
  if (log) {
    const all = [];
    for (let k = Math.ceil(Math.log10(low) - 1e-9); k <= Math.log10(high) + 1e-9; k++) all.push(10 ** k);
    return all.filter((_, i) => i % Math.ceil(all.length / 6) === 0);
  }
  const rough = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough), all = [];
  for (let x = Math.ceil(low / step) * step; x <= high + 1e-9 * step; x += step) all.push(+x.toPrecision(10));
  return all;
}

function plot(svg, { lines, mark, x, y, log, low, high }) {
  svg.replaceChildren();
  const W = 640, H = 300, left = 62, right = 30, top = 10 + 18 * lines.length, bottom = 42;
  const xs = lines.flatMap((l) => l.points.map((p) => p[0])), ys = lines.flatMap((l) => l.points.map((p) => p[1]));
  const box = [Math.min(...xs), Math.max(...xs), low ?? Math.min(...ys), high ?? Math.max(...ys)];
  const place = (v, a, b, isLog, from, to) => {
    const f = isLog ? Math.log10 : (z) => z;
    return from + ((f(v) - f(a)) / (f(b) - f(a) || 1)) * (to - from);
  };
  const px = (v) => place(v, box[0], box[1], log[0], left, W - right), py = (v) => place(v, box[2], box[3], log[1], H - bottom, top);
  for (const v of ticks(box[0], box[1], log[0])) {
    element("line", { x1: px(v), x2: px(v), y1: top, y2: H - bottom, class: "grid" }, svg);
    element("text", { x: px(v), y: H - bottom + 16, "text-anchor": "middle" }, svg, short(v));
  }
  for (const v of ticks(box[2], box[3], log[1])) {
    element("line", { x1: left, x2: W - right, y1: py(v), y2: py(v), class: "grid" }, svg);
    element("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end" }, svg, short(v));
  }
  element("text", { x: (left + W) / 2, y: H - 6, "text-anchor": "middle" }, svg, x);
  if (mark) element("line", { x1: px(mark), x2: px(mark), y1: top, y2: H - bottom, class: "mark" }, svg);
  lines.forEach((line, i) => {
    const d = line.points.map((p, k) => `${k ? "L" : "M"}${px(p[0]).toFixed(1)} ${py(p[1]).toFixed(1)}`).join("");
    element("path", { d, class: `line c${line.color}` }, svg);
    element("line", { x1: left, x2: left + 24, y1: 10 + 18 * i, y2: 10 + 18 * i, class: `line c${line.color}` }, svg);
    element("text", { x: left + 30, y: 14 + 18 * i }, svg, line.name + (y && !i ? ` (${y})` : ""));
  });
}

function mount(figure) {
  const { controls, draw } = FIGURES[figure.dataset.figure], values = {}, inputs = {};
  const form = element("div", { class: "controls" });
  const svg = element("svg", { viewBox: "0 0 640 300", role: "img" });
  const says = element("p", { "aria-live": "polite" });
  const update = () => {
    for (const [name, { input, output, isLog }] of Object.entries(inputs)) {
      values[name] = isLog ? 10 ** +input.value : +input.value;
      output.textContent = short(values[name]);
      input.setAttribute("aria-valuetext", short(values[name]));
    }
    const drawn = draw(values);
    plot(svg, drawn);
    svg.setAttribute("aria-label", drawn.says);
    says.textContent = drawn.says;
  };
  for (const [name, [label, low, high, value, step]] of Object.entries(controls)) {
    const isLog = step === "log", scale = isLog ? Math.log10 : (v) => v;
    const row = element("label", {}, form, label + " ");
    const input = element("input", { type: "range", min: scale(low), max: scale(high), step: isLog ? 0.02 : step }, row);
    input.value = scale(value);
    inputs[name] = { input, output: element("output", {}, row), isLog };
    input.addEventListener("input", update);
  }
  figure.replaceChildren(form, svg, says);
  update();
}

if (typeof module !== "undefined") module.exports = { ARITHMETIC, FIGURES };
else document.querySelectorAll("figure[data-figure]").forEach(mount);
