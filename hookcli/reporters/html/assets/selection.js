// The one selection: table, charts, picture, heat map and details all choose a module through it. The address has it, too.

import { button } from "./dom.js";

const listeners = new Set();
let chosen = { fqn: null, source: "", row: null };

/**
 * @typedef {Object} Selection
 * @property {string|null} fqn of the module; "" is the model itself, null is none
 * @property {string} source the view that selected, which need not scroll
 * @property {Object<string, any>|null} row the row of a report that was chosen, where it is one of several of the module
 */

/** Select a module, or nothing with null. */
export function select(fqn, source, row = null) {
  if (fqn === chosen.fqn && row === chosen.row) return;
  chosen = { fqn, source, row };
  listeners.forEach((listener) => listener(chosen));
}

/** Tell all views of the selection again, since what they show of it has changed. */
export function repeatSelection() {
  listeners.forEach((listener) => listener({ ...chosen, source: "repeat" }));
}

/** @returns {Selection} */
export function selected() {
  return chosen;
}

/** Call the function at every selection from now on. */
export function onSelect(listener) {
  listeners.add(listener);
}

/** Select nothing, and call nobody any more: another page takes the place of this one. */
export function forgetSelection() {
  listeners.clear();
  chosen = { fqn: null, source: "", row: null };
}

/** A button that selects a module, by its whole name or a text that has more. */
export function placeButton(text, fqn, source) {
  return button({ class: "place", title: text || "(model)" }, () => select(fqn, source), text || "(model)");
}

/**
 * Go to the tab and module in the address, page.html#modules/layer1.0, and write them there from now on.
 * @param {{show: (id: string) => void, now: () => string}} tabs
 * @returns {() => void} to call when another tab is shown
 */
export function followAddress(tabs, model) {
  const go = () => {
    let place = "";
    try {
      place = decodeURIComponent(location.hash.slice(1));
    } catch {
      // a person has typed it
    }
    const [tab, ...fqn] = place.split("/");
    if (tab) tabs.show(tab);
    if (model.byFqn.has(fqn.join("/")) && fqn.length) select(fqn.join("/"), "address");
  };
  const write = () => {
    const place = chosen.fqn === null ? [tabs.now()] : [tabs.now(), chosen.fqn];
    try {
      history.replaceState(null, "", `#${place.map(encodeURIComponent).join("/")}`);
    } catch {
      // a frame of a notebook has no address
    }
  };
  go();
  addEventListener("hashchange", go);
  onSelect(write);
  return write;
}
