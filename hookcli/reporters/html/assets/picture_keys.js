// The keyboard in the forward picture: the keys of a tree, in the order of execution.

const ZOOM_KEYS = { "+": 1.25, "=": 1.25, "-": 0.8, _: 0.8 };

/** Do what a key asks: arrows move, right and left unfold and fold, Enter selects, + and - zoom, 0 fits. */
export function boxKey(picture, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const boxes = picture.layout.boxes.map((placed) => placed.box);
  const at = boxes.findIndex((box) => box.key === picture.active);
  const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: boxes.length - 1 };
  if (event.key in ZOOM_KEYS) picture.zoom.by(ZOOM_KEYS[event.key]);
  else if (event.key === "0") picture.zoom.fit();
  else if (event.key in moves) goToBox(picture, boxes[Math.min(Math.max(moves[event.key], 0), boxes.length - 1)]);
  else if (at < 0 || !keyOnBox(picture, event.key, boxes[at], boxes[at + 1])) return;
  event.preventDefault();
}

/** True if the key did something. */
function keyOnBox(picture, key, box, next) {
  const open = picture.open.has(box.key);
  if (key === "Enter" || key === " ") picture.choose(box);
  else if (key === "ArrowRight" && box.parts.length) open ? goToBox(picture, next) : picture.toggle(box);
  else if (key === "ArrowLeft" && open) picture.toggle(box);
  else if (key === "ArrowLeft" && box.parent?.parent) goToBox(picture, box.parent);
  else return false;
  return true;
}

function goToBox(picture, box) {
  if (!box) return;
  picture.active = box.key;
  picture.zoom.reveal(picture.placed.get(box.key));
  picture.paint();
}
