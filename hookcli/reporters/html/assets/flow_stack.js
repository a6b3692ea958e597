// Places very many lines, as those of a dense block: the boxes in one column, the lines as arcs beside it.

const STACK_GAP = 30; // between boxes
const ARC_REACH = 160; // of the longest flowArc

/**
 * Place nodes in the order of execution, which no line runs against.
 * @param {{key: string, width: number, height: number}[]} nodes
 * @param {number[][]} pairs of the numbers of nodes
 * @param {(key: string) => number} sideOf 1 for a node at the top, 2 for one at the bottom, else 0
 * @returns {{places: {x: number, y: number, width: number, height: number}[], points: number[][][], width: number, height: number, faint: boolean}}
 */
export function stackedFlow(nodes, pairs, sideOf) {
  const boxes = nodes.filter((node) => !sideOf(node.key));
  const widest = Math.max(...boxes.map((node) => node.width));
  const ends = [1, 2].map((side) => nodes.filter((node) => sideOf(node.key) === side));
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

/** A straight line to the next box; to one further on, an flowArc that reaches as far to the right as it is long. */
function flowArc(from, to, widest, most) {
  const [start, end] = [from.y + from.height / 2, to.y - to.height / 2];
  if (end - start <= STACK_GAP + 1) return [[from.x, start], [to.x, end]];
  const out = widest + 12 + (ARC_REACH - 12) * Math.sqrt((to.y - from.y) / most);
  const [right, inTo] = [from.x + from.width / 2, to.x + to.width / 2];
  const across = from.height > 2 ? [right, from.y] : [from.x, from.y];
  return [across, [out, from.y], [out, to.y], to.height > 2 ? [inTo, to.y] : [to.x, to.y]];
}
