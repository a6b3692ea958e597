// The one selection: table, charts, picture, heat map and details all choose a module through it.

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
