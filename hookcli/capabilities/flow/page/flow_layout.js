// Places the boxes of the forward picture: each open box by itself, then as one box of its parent.
/* global dagre */

const OPEN_HEAD = 22; // of an open box, for its name
const OPEN_PAD = 10;
const PORT_GAP = 14; // between the edge of an open box and its first or last part
const STACK_GAP = 30; // between boxes in one column
const ARC_REACH = 160; // of the longest line beside that column
const MOST_PASSED = 300; // parts that the lines in a box pass, all together: with more, dagre takes seconds
const FLOW_SPACES = { rankdir: "TB", nodesep: 16, ranksep: 30, edgesep: 8, marginx: 0, marginy: 0 };

/**
 * @typedef {Object} Placed a box with its place
 * @property {FlowBox} box
 * @property {number} x of its left edge
 * @property {number} y of its top edge
 * @property {number} width
 * @property {number} height
 * @property {boolean} open
 *
 * @typedef {{points: number[][], from: string, to: string, shape: number[]|null, arrow: boolean, first: boolean, faint: boolean}} Line
 * `first`: of those with this value, here; `faint`: one of very many
 *
 * @typedef {{boxes: Placed[], lines: Line[], width: number, height: number}} Layout boxes around others come before them
 */

/**
 * Place all boxes that are drawn.
 * @param {Set<string>} open the keys of open boxes
 * @param {(box: FlowBox) => {width: number, height: number}} sizeOf of boxes that are not open
 */
export function layOutFlow(tree, open, sizeOf) {
  const links = linksByBox(tree, open);
  const cache = new Map();
  const inner = (box) => placeParts(box, links.get(box.key) ?? [], sizes(box), cache);
  const measured = new Map();
  const sizes = (box) => (part) => {
    if (!open.has(part.key)) return sizeOf(part);
    const within = inner(part);
    measured.set(part.key, within);
    const title = sizeOf(part).width;
    return { width: Math.max(within.width + 2 * OPEN_PAD, title), height: within.height + OPEN_HEAD + OPEN_PAD };
  };
  const whole = inner(tree.root);
  const layout = { boxes: [], lines: [], width: whole.width + 2 * OPEN_PAD, height: whole.height + 2 * OPEN_PAD };
  gatherFlow(layout, tree.root, whole, measured, OPEN_PAD, OPEN_PAD, new Map());
  return layout;
}

/** The links that are drawn in each open box: between its parts, and from and to the places where values enter and leave. */
function linksByBox(tree, open) {
  const found = new Map();
  for (const edge of tree.edges) {
    const from = shownPath(edge.from, open);
    const to = shownPath(edge.to, open);
    let level = 0;
    while (level < from.length && from[level] === to[level]) level += 1;
    if (level === from.length || level === to.length) continue; // inside one folded box
    const value = edge.from.key;
    const { shape } = edge;
    addLink(found, from[level].parent, { from: from[level].key, to: to[level].key, value, shape });
    for (let i = level + 1; i < from.length; i += 1) addLink(found, from[i].parent, { from: from[i].key, to: `out ${value}`, value, shape });
    for (let i = level + 1; i < to.length; i += 1) addLink(found, to[i].parent, { from: `in ${value}`, to: to[i].key, value, shape });
  }
  return new Map([...found].map(([key, links]) => [key, [...links.values()]]));
}

function addLink(found, box, link) {
  if (!found.has(box.key)) found.set(box.key, new Map());
  const links = found.get(box.key);
  const key = `${link.from}>${link.to}`;
  if (!links.has(key)) links.set(key, link);
}

/** The boxes around a call, from the outermost to the one that is drawn for it. */
function shownPath(box, open) {
  const path = [];
  for (let each = box; each.parent; each = each.parent) path.unshift(each);
  const folded = path.findIndex((each) => !open.has(each.key));
  return path.slice(0, folded + 1);
}

/** Place the parts of one box. Like boxes, as the blocks of a network, are placed once. */
function placeParts(box, links, sizeOf, cache) {
  const parts = box.parts.map((part) => ({ key: part.key, ...sizeOf(part) }));
  const ports = [...new Set(links.flatMap(({ from, to }) => [from, to]).filter(portSide))].map((key) => ({ key, width: 6, height: 1 }));
  const nodes = [...parts, ...ports];
  const index = new Map(nodes.map((node, i) => [node.key, i]));
  const pairs = links.map(({ from, to }) => [index.get(from), index.get(to)]);
  const likeness = JSON.stringify([nodes.map((node) => [node.width, node.height, portSide(node.key)]), pairs]);
  if (!cache.has(likeness)) cache.set(likeness, arrangedFlow(nodes, pairs));
  return { ...cache.get(likeness), index, links };
}

/** 1 where a value enters a box, 2 where one leaves it, 0 for a box. */
function portSide(key) {
  return key.startsWith("in ") ? 1 : key.startsWith("out ") ? 2 : 0;
}

function arrangedFlow(nodes, pairs) {
  const parts = nodes.filter((node) => !portSide(node.key)).length;
  const passed = pairs.reduce((sum, [from, to]) => sum + (Math.max(from, to) < parts ? to - from - 1 : 0), 0);
  if (passed > MOST_PASSED) return stackedFlow(nodes, pairs);
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ ...FLOW_SPACES, ranker: nodes.length > 300 ? "tight-tree" : "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  nodes.forEach(({ width, height }, i) => graph.setNode(`${i}`, { width, height }));
  pairs.forEach(([from, to]) => graph.setEdge(`${from}`, `${to}`, { weight: Math.abs(from - to) === 1 ? 4 : 1 }));
  tiePorts(graph, nodes, 1, (end, port) => graph.setEdge(end, port, { weight: 20 }));
  tiePorts(graph, nodes, 2, (end, port) => graph.setEdge(port, end, { weight: 20 }));
  dagre.layout(graph);
  const lines = pairs.map(([from, to]) => graph.edge(`${from}`, `${to}`).points);
  const [left, right] = flowSides(nodes.map((_, i) => graph.node(`${i}`)), lines);
  const [top, bottom] = [endOf(graph, nodes, 1, 0), endOf(graph, nodes, 2, graph.graph().height)];
  const places = nodes.map((_, i) => graph.node(`${i}`)).map((node) => ({ ...node, x: node.x - left, y: node.y - top }));
  const points = lines.map((line) => line.map(({ x, y }) => [x - left, y - top]));
  return { places, points, width: Math.max(right - left, 0), height: Math.max(bottom - top, 0) };
}

/** The leftmost and the rightmost x: dagre leaves bends of lines out of its own count. */
function flowSides(places, lines) {
  const bends = lines.flat().map(({ x }) => [x - 2, x + 2]);
  const all = [...places.map(({ x, width }) => [x - width / 2, x + width / 2]), ...bends];
  return [all.reduce((least, [left]) => Math.min(least, left), Infinity), all.reduce((most, [, right]) => Math.max(most, right), -Infinity)];
}

/** Where a drawing begins (1) or ends (2): a little before or after where values enter or leave, or at a box beyond. */
function endOf(graph, nodes, side, otherwise) {
  const port = nodes.findIndex((node) => portSide(node.key) === side);
  if (port < 0) return otherwise;
  const edges = nodes.flatMap((node, i) => (portSide(node.key) ? [] : [graph.node(`${i}`)]));
  const level = graph.node(`${port}`).y;
  if (side === 1) return edges.reduce((least, { y, height }) => Math.min(least, y - height / 2 - PORT_GAP), level + PORT_GAP);
  return edges.reduce((most, { y, height }) => Math.max(most, y + height / 2 + PORT_GAP), level - PORT_GAP);
}

/** Hold all places where values enter at the top, and all where they leave at the bottom. */
function tiePorts(graph, nodes, side, tie) {
  const ports = nodes.map((node, i) => [node, `${i}`]).filter(([node]) => portSide(node.key) === side);
  if (!ports.length) return;
  graph.setNode(`end${side}`, { width: 0, height: 0 });
  ports.forEach(([, port]) => tie(`end${side}`, port));
}

/** Add the boxes and lines of one open box at its place, then those inside its parts. */
function gatherFlow(layout, box, within, measured, x, y, ports) {
  const at = new Map();
  for (const part of box.parts) {
    const place = within.places[within.index.get(part.key)];
    const placed = { box: part, x: x + place.x - place.width / 2, y: y + place.y - place.height / 2, width: place.width, height: place.height, open: measured.has(part.key) };
    layout.boxes.push(placed);
    at.set(part.key, placed);
    if (placed.open) gatherFlow(layout, part, measured.get(part.key), measured, ...inside(placed, measured.get(part.key)), portsOf(placed, measured.get(part.key)));
  }
  const seen = new Set();
  within.links.forEach((link, i) => {
    const points = within.points[i].map(([px, py]) => [x + px, y + py]);
    const start = portSide(link.from) ? ports.get(link.from) : portAt(at, measured, link.from, `out ${link.value}`);
    const end = portSide(link.to) ? ports.get(link.to) : portAt(at, measured, link.to, `in ${link.value}`);
    if (start) points[0] = start;
    if (end) points[points.length - 1] = end;
    const of = { from: link.from, to: link.to, shape: link.shape, faint: within.faint === true };
    layout.lines.push({ ...of, points, arrow: !portSide(link.to) && !end, first: portSide(link.to) !== 2 && !portSide(link.from) && !seen.has(`${link.from} ${link.shape}`) });
    seen.add(`${link.from} ${link.shape}`);
  });
}

/** Where the parts of an open box begin. */
function inside(placed, within) {
  return [placed.x + (placed.width - within.width) / 2, placed.y + OPEN_HEAD];
}

/** Where values enter and leave an open box: on its upper and its lower edge. */
function portsOf(placed, within) {
  const [left] = inside(placed, within);
  const found = new Map();
  for (const [key, i] of within.index) {
    if (portSide(key)) found.set(key, [left + within.places[i].x, portSide(key) === 1 ? placed.y : placed.y + placed.height]);
  }
  return found;
}

function portAt(at, measured, key, port) {
  const placed = at.get(key);
  return placed.open ? portsOf(placed, measured.get(key)).get(port) : null;
}

/** Place very many lines, as a dense block has: the boxes in one column, in the order of execution, the lines as arcs beside it. */
function stackedFlow(nodes, pairs) {
  const boxes = nodes.filter((node) => !portSide(node.key));
  const widest = Math.max(...boxes.map((node) => node.width));
  const ends = [1, 2].map((side) => nodes.filter((node) => portSide(node.key) === side));
  const height = boxes.reduce((sum, node) => sum + node.height + STACK_GAP, STACK_GAP);
  const places = new Map();
  let y = STACK_GAP;
  for (const node of boxes) {
    places.set(node, { x: widest / 2, y: y + node.height / 2, width: node.width, height: node.height });
    y += node.height + STACK_GAP;
  }
  ends.forEach((ports, side) => ports.forEach((node, i) => places.set(node, { x: ((i + 1) * widest) / (ports.length + 1), y: side ? height : 0, width: 6, height: 1 })));
  const placed = nodes.map((node) => places.get(node));
  const most = Math.max(1, ...pairs.map(([from, to]) => placed[to].y - placed[from].y));
  const points = pairs.map(([from, to]) => flowArc(placed[from], placed[to], widest, most));
  return { places: placed, points, width: widest + ARC_REACH + 8, height, faint: true };
}

/** A straight line to the next box; to one further on, an arc that reaches as far to the right as it is long. */
function flowArc(from, to, widest, most) {
  const [start, end] = [from.y + from.height / 2, to.y - to.height / 2];
  if (end - start <= STACK_GAP + 1) return [[from.x, start], [to.x, end]];
  const out = widest + 12 + (ARC_REACH - 12) * Math.sqrt((to.y - from.y) / most);
  const edge = ({ x, y, width, height }) => (height > 2 ? [x + width / 2, y] : [x, y]); // else it is a port
  return [edge(from), [out, from.y], [out, to.y], edge(to)];
}
