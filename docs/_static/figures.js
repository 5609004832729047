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
    const modes = Array.from({ length: 100 }, (_, i) => i + 1), kappa = Math.min(1, 1 / (2 * alpha)), losses = [];
    const lam = modes.map((j) => j ** (-2 * alpha)), a = modes.map((j) => j ** (-2 * beta));
    const b = modes.map(() => 0), c = modes.map(() => 0);
    for (let t = 0; t < steps; t++) {
      const loss = 0.5 * lam.reduce((sum, value, j) => sum + value * a[j], 0);
      losses.push(loss);
      if (loss > 1e3) break;
      const [keep, own, total] = {
        sgd: [0, 0.3, 0],
        momentum: [0.9, 0, 0.03],
        log: [1 - 5.3 / (5.3 + t), 0.3, 0.15 * (1 + t) ** -kappa],
      }[method];
      for (let j = 0; j < lam.length; j++) {
        const gg = lam[j] ** 2 * a[j] * (1 + 1 / batch) + (2 * loss * lam[j]) / batch;
        const ey = keep * b[j] + lam[j] * a[j], gy = keep * lam[j] * b[j] + gg;
        c[j] = keep ** 2 * c[j] + 2 * keep * lam[j] * b[j] + gg;
        a[j] += -2 * own * lam[j] * a[j] + own ** 2 * gg + total ** 2 * c[j] - 2 * total * ey + 2 * total * own * gy;
        b[j] = ey - own * gy - total * c[j];
      }
    }
    return losses;
  },

  // Compute saved where losses are floor + (1 / C)^slope and the contender ends `gap` below the baseline.
  saved({ gap, reducible, slope }) {
    return gap < reducible ? 1 - (1 - gap / reducible) ** (1 / slope) : 1;
  },
};

const range = (low, high, count) => Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));
const decades = (low, high, count) => range(Math.log10(low), Math.log10(high), count).map((x) => 10 ** x);
const short = (x) => (x !== 0 && (Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3) ? x.toExponential(1) : String(+x.toPrecision(3)));

// name -> controls {name: [label, low, high, value, "log" or step]} and draw(values) -> {lines, x, log, says}
const FIGURES = {
  schedule: {
    controls: { delta: ["delta", 2, 32, 8, 1], kappa: ["kappa", 0.5, 1, 0.85, 0.01], t: ["step t", 1, 1e5, 1000, "log"] },
    draw({ delta, kappa, t }) {
      const at = (step) => ARITHMETIC.schedule({ delta, kappa, t: step }), now = at(t), steps = decades(1, 1e5, 80);
      const line = (name, key, color) => ({ name, color, points: steps.map((step) => [step, at(step)[key]]) });
      return {
        lines: [line("momentum window 1 / (1 - beta) [steps]", "memory", 0), line("alpha", "alpha", 1)], x: "step t", log: true,
        says: `At step ${short(t)}: beta = ${now.beta.toFixed(4)}, memory ${short(now.memory)} steps, alpha = ${short(now.alpha)}.`,
      };
    },
  },
  features: {
    controls: { alpha: ["alpha, of the data", 0.6, 1.5, 1, 0.05], beta: ["beta, of the target", 0, 1, 0.3, 0.05], batch: ["batch", 1, 256, 1, "log"] },
    draw({ alpha, beta, batch }) {
      const steps = 1500, kinds = [["SGD", "sgd"], ["momentum of 10 steps", "momentum"], ["logarithmic time", "log"]];
      const lines = kinds.map(([name, method], color) => {
        const losses = ARITHMETIC.features({ alpha, beta, batch: Math.round(batch), method, steps });
        const at = [...new Set(decades(1, losses.length, 60).map((s) => Math.round(s)))];
        return { name, color, points: at.map((s) => [s, losses[s - 1]]), last: losses[losses.length - 1] };
      });
      const [sgd, , log] = lines;
      return { lines, x: "step", log: true,
        says: `After ${steps} steps: SGD ${short(sgd.last)}, logarithmic time ${short(log.last)}, ${short(sgd.last / log.last)} times lower.` };
    },
  },
  saved: {
    controls: { gap: ["gap of the final losses [nats/token]", 0, 0.3, 0.05, 0.005],
      reducible: ["loss above the floor [nats/token]", 0.3, 3, 1, 0.05], slope: ["exponent of the law", 0.05, 0.5, 0.15, 0.01] },
    draw({ gap, reducible, slope }) {
      const share = ARITHMETIC.saved({ gap, reducible, slope }), compute = decades(0.05, 1.2, 60);
      const curve = (name, color, scale) => ({ name, color, points: compute.map((x) => [x, reducible * (x / scale) ** -slope]) });
      return {
        lines: [curve("baseline: loss above the floor", 1, 1), curve("contender", 0, 1 - share || 1),
          { name: "saved", color: 2, points: [[1 - share, reducible], [1, reducible]] }],
        x: "compute, of the baseline's", log: false,
        says: `A gap of ${short(gap)} nats/token saves ${Math.round(100 * share)}% of the compute.`,
      };
    },
  },
};

function element(name, attributes, parent, text = "") {
  const isDrawn = ["svg", "path", "line", "text"].includes(name);
  const made = isDrawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.textContent = text;
  parent?.append(made);
  return made;
}

function plot(svg, { lines, x, log }) {
  svg.replaceChildren();
  const points = lines.flatMap((line) => line.points), top = 10 + 18 * lines.length;
  const axis = (k, from, to) => { // of coordinate k: place of a value, and the values of the ticks
    const values = points.map((point) => point[k]), low = Math.min(...values), high = Math.max(...values);
    const f = log ? Math.log10 : (z) => z;
    const ticks = (log ? decades : range)(low, high, 5);
    return { place: (z) => from + ((f(z) - f(low)) / (f(high) - f(low) || 1)) * (to - from), ticks };
  };
  const across = axis(0, 62, 610), up = axis(1, 258, top);
  for (const v of across.ticks) {
    element("line", { x1: across.place(v), x2: across.place(v), y1: top, y2: 258, class: "grid" }, svg);
    element("text", { x: across.place(v), y: 274, "text-anchor": "middle" }, svg, short(v));
  }
  for (const v of up.ticks) {
    element("line", { x1: 62, x2: 610, y1: up.place(v), y2: up.place(v), class: "grid" }, svg);
    element("text", { x: 56, y: up.place(v) + 4, "text-anchor": "end" }, svg, short(v));
  }
  element("text", { x: 336, y: 294, "text-anchor": "middle" }, svg, x);
  lines.forEach((line, i) => {
    const d = line.points.map((p, k) => `${k ? "L" : "M"}${across.place(p[0]).toFixed(1)} ${up.place(p[1]).toFixed(1)}`);
    element("path", { d: d.join(""), class: `line c${line.color}` }, svg);
    element("line", { x1: 62, x2: 86, y1: 10 + 18 * i, y2: 10 + 18 * i, class: `line c${line.color}` }, svg);
    element("text", { x: 92, y: 14 + 18 * i }, svg, line.name);
  });
}

function mount(figure) {
  const { controls, draw } = FIGURES[figure.dataset.figure], values = {}, form = element("div", { class: "controls" });
  const svg = element("svg", { viewBox: "0 0 640 300", role: "img" }), says = element("p", { "aria-live": "polite" });
  const update = () => {
    const drawn = draw(values);
    plot(svg, drawn);
    svg.setAttribute("aria-label", drawn.says);
    says.textContent = drawn.says;
  };
  for (const [name, [label, low, high, value, step]] of Object.entries(controls)) {
    const isLog = step === "log", scale = isLog ? Math.log10 : (v) => v, row = element("label", {}, form, `${label} `);
    const input = element("input", { type: "range", min: scale(low), max: scale(high), step: isLog ? 0.02 : step }, row);
    const output = element("output", {}, row);
    const read = () => {
      values[name] = isLog ? 10 ** +input.value : +input.value;
      output.textContent = short(values[name]);
      input.setAttribute("aria-valuetext", short(values[name]));
    };
    input.value = scale(value);
    read();
    input.addEventListener("input", () => { read(); update(); });
  }
  figure.replaceChildren(form, svg, says);
  update();
}

if (typeof module !== "undefined") module.exports = { ARITHMETIC };
else document.querySelectorAll("figure[data-figure]").forEach(mount);
