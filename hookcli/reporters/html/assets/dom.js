// Builds elements. Every text becomes a text node, so that names from models and files are never markup.

// Control characters, separators and marks of direction, which would hide or reorder what stands beside them.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/g;
const ANY_HIDDEN = new RegExp(HIDDEN.source, "u");
const SVG = "http://www.w3.org/2000/svg";

/** The text with characters that can't be seen as Python escapes them: \n, \x1b. */
function visible(value) {
  const text = String(value);
  return ANY_HIDDEN.test(text) ? [...text].map((one) => one.replace(ANY_HIDDEN, escaped)).join("") : text;
}

function escaped(character) {
  const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[character];
  const code = character.charCodeAt(0);
  return short ?? (code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`);
}

/**
 * An element with attributes and children. `on` has listeners by event, and `style` properties by name; true sets an
 * empty attribute, false and null set none. Strings and numbers among the children become text nodes.
 */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element, as `h` makes HTML elements. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") Object.entries(value).forEach(([event, listener]) => element.addEventListener(event, listener));
    else if (name === "style") Object.entries(value).forEach(([property, text]) => element.style.setProperty(property, text)); // the policy forbids the attribute
    else if (name.startsWith("on")) throw new Error(`${name} is set by a listener`);
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...shown.map((child) => (child instanceof Node ? child : visible(child)))); // a text is never markup here
  return element;
}

/** A button of the page's usual look, unless `attributes` have a class; a click runs the function. */
export function button(attributes, run, ...children) {
  return h("button", { type: "button", class: "button", ...attributes, on: { click: run } }, ...children);
}

/** Texts in a line that breaks between them, and within none that fits a line. */
export function phrases(texts) {
  return texts.map((text, i) => [h("span", { class: "phrase" }, text, i < texts.length - 1 ? " ·" : ""), " "]);
}

/** Save a JSON text as a file of the browser. */
export function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = h("a", { download: name.replace(/[^\w.-]+/g, "_") || "report" });
  link.href = url;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A list of the first items, and a button that shows the others. */
export function longList(attributes, items, most, item) {
  const list = h("ul", attributes, items.slice(0, most).map(item));
  if (items.length <= most) return [list];
  const showAll = () => {
    list.append(...items.slice(most).map(item));
    more.remove();
  };
  const more = button({}, showAll, `Show all ${items.length.toLocaleString("en-US")}`);
  return [list, more];
}

/** The function, at most once a frame. */
export function framed(run) {
  let asked = 0;
  return () => {
    if (!asked) {
      asked = requestAnimationFrame(() => {
        asked = 0;
        run();
      });
    }
  };
}
