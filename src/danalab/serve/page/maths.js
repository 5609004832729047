// LaTeX formulas as MathML, which browsers draw without a font or a library. A command that is not known stays text.

const NS = "http://www.w3.org/1998/Math/MathML";
const DEEPEST = 40;
const LONGEST = 4000;

const GREEK =
  "alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ nu:ν " +
  "xi:ξ pi:π rho:ρ sigma:σ tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π " +
  "Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω ell:ℓ hbar:ℏ infty:∞ partial:∂ nabla:∇ emptyset:∅ varnothing:∅ Re:ℜ Im:ℑ aleph:ℵ " +
  "top:⊤ bot:⊥ angle:∠ degree:° ldots:… dots:… cdots:⋯ vdots:⋮ ddots:⋱ prime:′";
const OPERATORS =
  "cdot:⋅ times:× div:÷ pm:± mp:∓ ast:∗ star:⋆ circ:∘ bullet:• oplus:⊕ otimes:⊗ odot:⊙ leq:≤ le:≤ geq:≥ ge:≥ neq:≠ ne:≠ " +
  "approx:≈ equiv:≡ sim:∼ simeq:≃ cong:≅ propto:∝ ll:≪ gg:≫ in:∈ notin:∉ ni:∋ subset:⊂ subseteq:⊆ supset:⊃ supseteq:⊇ cup:∪ " +
  "cap:∩ setminus:∖ land:∧ wedge:∧ lor:∨ vee:∨ neg:¬ lnot:¬ forall:∀ exists:∃ to:→ rightarrow:→ leftarrow:← mapsto:↦ " +
  "Rightarrow:⇒ Leftarrow:⇐ Leftrightarrow:⇔ leftrightarrow:↔ implies:⟹ iff:⟺ longrightarrow:⟶ uparrow:↑ downarrow:↓ mid:∣ " +
  "parallel:∥ perp:⊥ langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ lVert:‖ rVert:‖ lvert:| rvert:| Vert:‖ vert:| colon::";
const LARGE = "sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂";
const INTEGRALS = "int:∫ iint:∬ iiint:∭ oint:∮";
const FUNCTIONS =
  "arccos arcsin arctan cos cosh cot det dim exp gcd ker lg ln log Pr sin sinh tan tanh arg deg hom sec csc coth";
const LIMITS = "lim max min sup inf limsup liminf argmax argmin";
const SPACES = { ",": "0.17em", ":": "0.22em", ">": "0.22em", ";": "0.28em", " ": "0.33em", "!": "-0.17em", quad: "1em", qquad: "2em" };
const ACCENTS = { hat: "^", widehat: "^", bar: "¯", overline: "¯", vec: "→", tilde: "~", widetilde: "~", dot: "˙", ddot: "¨" };
const STYLES = { mathbf: "bold", boldsymbol: "bold", bm: "bold", mathbb: "double", mathcal: "script", mathscr: "script", mathfrak: "fraktur" };
const FENCES = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], vmatrix: ["|", "|"], cases: ["{", ""], aligned: ["", ""],
  align: ["", ""], "align*": ["", ""], array: ["", ""], gathered: ["", ""], split: ["", ""] };

const table = (text) => new Map(text.split(" ").map((each) => [each.slice(0, each.indexOf(":")), each.slice(each.indexOf(":") + 1)]));
const letters = table(GREEK);
const operators = table(OPERATORS);
const large = table(LARGE);
const integrals = table(INTEGRALS);
const functions = new Set(FUNCTIONS.split(" "));
const limits = new Set(LIMITS.split(" "));

function node(tag, ...children) {
  const made = document.createElementNS(NS, tag);
  made.append(...children);
  return made;
}

function group(nodes) {
  return nodes.length === 1 ? nodes[0] : node("mrow", ...nodes);
}

// The formula as a <math> element, with its source as the description.
export function maths(source, isDisplay) {
  const made = node("math");
  if (isDisplay) made.setAttribute("display", "block");
  made.setAttribute("alttext", source.trim());
  if (source.length > LONGEST) made.append(node("mtext", source));
  else made.append(...new Reader(source, isDisplay).rest());
  return made;
}

class Reader {
  constructor(source, isDisplay) {
    this.tokens = source.match(/\\(?:[A-Za-z]+\*?|[^])|\d+(?:\.\d+)?|\s+|[^]/gu) ?? [];
    this.at = 0;
    this.depth = 0;
    this.isDisplay = isDisplay;
  }

  // Everything, also behind a bracket that nothing opens.
  rest() {
    const found = this.row(() => false);
    while (this.at < this.tokens.length) found.push(node("mo", this.tokens[this.at++]), ...this.row(() => false));
    return found;
  }

  peek() {
    while (/^\s/.test(this.tokens[this.at] ?? "")) this.at++;
    return this.tokens[this.at];
  }

  take() {
    const token = this.peek();
    this.at++;
    return token;
  }

  // Nodes up to a token that ends them.
  row(ends) {
    const found = [];
    for (let token = this.peek(); token !== undefined && token !== "}" && !ends(token); token = this.peek()) found.push(this.scripted(ends));
    return found;
  }

  // One thing with what stands above and below it.
  scripted(ends) {
    const first = this.peek();
    const base = first === "^" || first === "_" ? node("mrow") : this.atom(ends);
    const scripts = {};
    let primes = "";
    for (let token = this.peek(); ["^", "_", "'"].includes(token); token = this.peek()) {
      this.at++;
      if (token === "'") primes += "′";
      else if (scripts[token]) break;
      else scripts[token] = this.argument();
    }
    if (primes) scripts["^"] = scripts["^"] ? node("mrow", node("mo", primes), scripts["^"]) : node("mo", primes);
    const { _: below, "^": above } = scripts;
    const kind = base.isLimited && this.isDisplay ? ["munderover", "munder", "mover"] : ["msubsup", "msub", "msup"];
    if (below && above) return node(kind[0], base, below, above);
    if (below) return node(kind[1], base, below);
    return above ? node(kind[2], base, above) : base;
  }

  argument() {
    if (this.depth > DEEPEST || this.peek() === undefined) return node("mrow");
    return this.peek() === "}" ? node("mrow") : this.atom(() => false);
  }

  atom(ends) {
    this.depth++;
    const made = this.depth > DEEPEST ? node("mtext", this.take()) : this.one(this.take(), ends);
    this.depth--;
    return made;
  }

  one(token) {
    if (token === "{") {
      const inside = group(this.row(() => false));
      if (this.peek() === "}") this.at++;
      return inside;
    }
    if (/^\d/.test(token)) return node("mn", token);
    if (/^\p{L}$/u.test(token)) return node("mi", token);
    if (token[0] !== "\\" || token.length === 1) return node("mo", token === "-" ? "−" : token === "*" ? "∗" : token);
    return this.command(token.slice(1));
  }

  command(name) {
    if (letters.has(name)) return node("mi", letters.get(name));
    if (operators.has(name)) return node("mo", operators.get(name));
    if (integrals.has(name)) return node("mo", integrals.get(name));
    if (large.has(name)) return limited(node("mo", large.get(name)));
    if (functions.has(name)) return node("mi", name);
    if (limits.has(name)) return limited(node("mi", name.replace(/^(arg|lim)(max|min|sup|inf)$/, "$1 $2")));
    if (name in SPACES) return space(SPACES[name]);
    if (name in ACCENTS) return accent(this.argument(), ACCENTS[name]);
    if (name in STYLES) return styled(this.argument(), STYLES[name]);
    if (["frac", "dfrac", "tfrac", "cfrac"].includes(name)) return node("mfrac", this.argument(), this.argument());
    if (name === "binom") return node("mrow", node("mo", "("), bar(this.argument(), this.argument()), node("mo", ")"));
    if (name === "sqrt") return this.root();
    if (["text", "textrm", "textbf", "mbox", "textit"].includes(name)) return node("mtext", this.raw());
    if (["mathrm", "operatorname", "operatorname*", "mathsf", "mathtt"].includes(name)) return upright(this.raw());
    if (name === "underbrace" || name === "underline") return node("munder", this.argument(), node("mo", name === "underline" ? "_" : "⏟"));
    if (name === "left") return this.fenced();
    if (name === "begin") return this.environment();
    if (["displaystyle", "textstyle", "limits", "nolimits", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr"].includes(name))
      return node("mrow");
    if (name === "\\") return node("mspace");
    return name.length === 1 ? node("mo", name) : node("mtext", `\\${name}`);
  }

  root() {
    if (this.peek() !== "[") return node("msqrt", this.argument());
    this.at++;
    const degree = group(this.row((token) => token === "]"));
    this.at++;
    return node("mroot", this.argument(), degree);
  }

  // The text in braces as it stands.
  raw() {
    if (this.peek() !== "{") return this.take() ?? "";
    let text = "";
    this.at++;
    for (let open = 1; this.at < this.tokens.length; this.at++) {
      const token = this.tokens[this.at];
      open += token === "{" ? 1 : token === "}" ? -1 : 0;
      if (!open) break;
      text += token;
    }
    this.at++;
    return text;
  }

  fenced() {
    const open = this.fence();
    const inside = this.row((token) => token === "\\right");
    if (this.peek() === "\\right") this.at++;
    const close = this.at <= this.tokens.length ? this.fence() : "";
    return node("mrow", ...[open].filter(Boolean).map(stretched), ...inside, ...[close].filter(Boolean).map(stretched));
  }

  fence() {
    const token = this.take() ?? ".";
    return token === "." ? "" : (operators.get(token.slice(1)) ?? token.replace(/^\\(?=[{}])/, "").replace("\\|", "‖"));
  }

  environment() {
    const name = this.raw();
    if (name === "array") this.raw(); // its columns
    const rows = [[]];
    while (this.peek() !== undefined && this.peek() !== "\\end") {
      const cell = this.row((token) => ["&", "\\\\", "\\end"].includes(token));
      rows.at(-1).push(node("mtd", ...cell));
      const token = this.peek();
      if (token === "}") rows.at(-1).push(node("mtd", node("mo", this.take())));
      else if (token === "&" || token === "\\\\") this.at++;
      if (token === "\\\\") rows.push([]);
    }
    this.at++;
    this.raw();
    const grid = node("mtable", ...rows.filter((row) => row.length).map((row) => node("mtr", ...row)));
    if (/align|split|cases/.test(name)) grid.setAttribute("class", name === "cases" ? "cases" : "aligned");
    const [open, close] = FENCES[name] ?? ["", ""];
    return node("mrow", ...[open].filter(Boolean).map(stretched), grid, ...[close].filter(Boolean).map(stretched));
  }
}

function limited(made) {
  made.isLimited = true;
  return made;
}

function space(width) {
  const made = node("mspace");
  made.setAttribute("width", width);
  return made;
}

function stretched(text) {
  const made = node("mo", text);
  made.setAttribute("stretchy", "true");
  made.setAttribute("fence", "true");
  return made;
}

function accent(base, mark) {
  const made = node("mover", base, node("mo", mark));
  made.setAttribute("accent", "true");
  return made;
}

function bar(above, below) {
  const made = node("mfrac", above, below);
  made.setAttribute("linethickness", "0");
  return made;
}

function upright(text) {
  const made = node("mi", text);
  made.setAttribute("mathvariant", "normal");
  return made;
}

// Unicode has the letters of each style.
const STARTS = { bold: [0x1d400, 0x1d41a, 0x1d7ce], double: [0x1d538, 0x1d552, 0x1d7d8], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e] };
const EXCEPTIONS = { double: { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }, fraktur: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
  script: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" } };

function styled(base, style) {
  const [upper, lower, digit] = STARTS[style];
  const letter = (text) => {
    if (EXCEPTIONS[style]?.[text]) return EXCEPTIONS[style][text];
    if (/^[A-Z]$/.test(text)) return String.fromCodePoint(upper + text.charCodeAt(0) - 65);
    if (/^[a-z]$/.test(text)) return String.fromCodePoint(lower + text.charCodeAt(0) - 97);
    return digit && /^\d$/.test(text) ? String.fromCodePoint(digit + Number(text)) : text;
  };
  for (const each of base.children.length ? base.querySelectorAll("mi, mn") : [base])
    each.textContent = [...each.textContent].map(letter).join("");
  return base;
}
