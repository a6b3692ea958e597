// Keeps the tab and the selection in the address, so that a link leads to a module: page.html#modules/layer1.0.

import { onSelect, select, selected } from "./selection.js";

/**
 * Go to the place in the address, and write it there from now on.
 * @param {{show: (id: string) => void, now: () => string}} tabs
 */
export function mountPlace(tabs, model) {
  const go = () => {
    const [tab, ...fqn] = decoded(location.hash.slice(1)).split("/");
    if (tab) tabs.show(tab);
    if (model.byFqn.has(fqn.join("/")) && fqn.length) select(fqn.join("/"), "address");
  };
  go();
  addEventListener("hashchange", go);
  onSelect(() => write(tabs.now(), selected().fqn));
  return () => write(tabs.now(), selected().fqn);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function write(tab, fqn) {
  try {
    history.replaceState(null, "", `#${encodeURIComponent(tab)}${fqn === null ? "" : `/${encodeURIComponent(fqn)}`}`);
  } catch {
    // a frame of a notebook has no address
  }
}
