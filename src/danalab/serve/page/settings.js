// The dialog with the settings.

import { $ } from "./dom.js";
import { DEFAULTS, saveKey, saveSettings } from "./store.js";

const FIELDS = Object.keys(DEFAULTS).filter((name) => name !== "model"); // the header has a selector for it

export function openSettings(settings, key, field = "system") {
  const form = $("settings").querySelector("form");
  for (const name of FIELDS) form.elements[name].value = settings[name] ?? "";
  form.elements.key.value = key;
  if (!$("settings").open) $("settings").showModal();
  form.elements[field].focus();
}

// Takes what is in the fields into `settings`; a value out of range leaves the last good one. Returns the key.
export function takeSettings(settings) {
  const form = $("settings").querySelector("form");
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (!field.validity.valid) continue;
    if (field.type !== "number") settings[name] = field.value;
    else settings[name] = field.value === "" ? DEFAULTS[name] : field.valueAsNumber;
  }
  const key = form.elements.key.value.trim();
  saveSettings(settings);
  saveKey(key);
  applyTheme(settings);
  return key;
}

export function applyTheme({ theme }) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
