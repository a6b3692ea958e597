// The parts of capabilities: views of a model, each drawn from its own reports.

/**
 * @typedef {Object} Part
 * @property {string} id stable: the tab is #tab-ID, its panel #view-ID
 * @property {string} title
 * @property {(model: Model) => any[]} drawn what is drawn of a model, without its figures; nothing if there is no view
 * @property {(container: HTMLElement, context: Context & {excess?: Map<string, number>}) => Mounted|void} mount with
 *   `excess`, of a comparison, by how much the output of each module is off
 */

/** @type {Part[]} */
export const addedParts = [];

/** Have pages show this part. A module of a capability calls it as it is read, before a page is built. */
export function addPart(part) {
  addedParts.push(part);
}
