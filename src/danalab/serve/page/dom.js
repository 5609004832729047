// Small parts that the page is made of: elements, buttons, messages at the edge of the screen.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function icon(name) {
  return svg("svg", { "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));
}

export function textButton(text, act, className) {
  const button = element("button", className, text);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

export function iconButton(name, label, act, className = "icon") {
  const button = textButton("", act, className);
  button.setAttribute("aria-label", label);
  button.title = label;
  button.append(icon(name));
  return button;
}

// Tells a screen reader.
export function say(text) {
  $("status").textContent = "";
  setTimeout(() => ($("status").textContent = text), 50);
}

let timer = 0;
export function toast(text, action, act) {
  const close = () => ($("toast").hidden = true);
  $("toast").replaceChildren(text);
  if (action)
    $("toast").append(
      textButton(action, () => {
        close();
        act();
      }),
    );
  $("toast").hidden = false;
  clearTimeout(timer);
  timer = setTimeout(close, 8000);
}

export function download(name, text, type) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
