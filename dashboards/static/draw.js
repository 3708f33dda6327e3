// Elements made from text: what agents wrote is shown, never parsed.

// Controls and marks that hide or reorder text are shown as escapes.
const UNSAFE = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function shown(value) {
  const words = value === null || value === undefined ? "" : String(value);
  return words.replace(UNSAFE, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function element(name, properties = {}, words = "") {
  const made = document.createElement(name);
  for (const [property, value] of Object.entries(properties)) made[property] = value;
  if (words !== "") made.textContent = shown(words);
  return made;
}

export function text(words, className = "") {
  return element("span", { className }, words);
}

export function children(name, ...parts) {
  const made = document.createElement(name);
  made.append(...parts);
  return made;
}

// Columns are [title, value of a row (text or an element), class].
export function table(columns, rows) {
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const [title] of columns) {
    const cell = element("th", {}, title);
    cell.scope = "col";
    head.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const [, value, className = ""] of columns) {
      const cell = line.insertCell();
      cell.className = className;
      const found = value(row);
      found instanceof Node ? cell.append(found) : (cell.textContent = shown(found));
    }
  }
  return made;
}

export function fact(facts, name, value) {
  const described = element("dd");
  described.append(value instanceof Node ? value : shown(value));
  facts.append(element("dt", {}, name), described);
}
