// The tree of places in a model: modules, and parameters and operators in them, by name. The page's data carry it.

let owners = new Map();

/** Take the places of a payload, each with the module around it; a growing record sends them again. */
export function declarePlaces(places) {
  owners = new Map(Object.entries(places));
}

/** The name of the module around a module, parameter or operator; "" for the model. */
export function ownerOf(fqn) {
  return owners.get(fqn) ?? "";
}

/** The name itself and the names around it, from the innermost to "". */
export function ancestors(fqn) {
  const found = [fqn];
  while (found[found.length - 1]) found.push(ownerOf(found[found.length - 1]));
  return found;
}

/** True for a part of a module, at any depth. */
export function isWithin(fqn, owner) {
  return fqn !== owner && ancestors(fqn).includes(owner);
}

/** The rest of the name of a part of a module: "conv1", or ":add_1" for an operator. */
export function relativeName(fqn, owner) {
  return isWithin(fqn, owner) ? fqn.slice(owner.length).replace(/^\./, "") : fqn;
}

/** Nodes of a tree with all that is in them, each before its parts. */
export function inTree(nodes, partsOf = (node) => node.children) {
  return nodes.flatMap((node) => [node, ...inTree(partsOf(node), partsOf)]);
}
