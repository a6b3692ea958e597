// Paints the cells of a heat map: a pixel per module and step, magnified; hatched where nothing was measured.

import { ABSENT } from "./matrix.js";
import { shadesOf } from "./heat_scale.js";
import { token } from "./color.js";

const BAD_COLOR = [214, 0, 80, 255]; // no shade of either scale comes near it
const CROSSED_FROM = 7; // cells of this width and more also bear a cross

/**
 * Paint rows.
 * @param {{height: number, width: number, scale: HeatScale|null, theme: "light"|"dark"}} look
 */
export function paintCells(canvas, rows, { height, width, scale, theme }) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(rows.length * height * ratio));
  Object.assign(canvas.style, { width: `${width}px`, height: `${rows.length * height}px` });
  const context = canvas.getContext("2d");
  hatchAll(context, canvas);
  if (!rows.length || !rows[0].values.length) return;
  const steps = rows[0].values.length;
  const columns = Math.min(steps, canvas.width);
  context.imageSmoothingEnabled = false;
  context.drawImage(cellImage(rows, columns, scale && shadesOf(scale, theme), scale), 0, 0, canvas.width, canvas.height);
  if (canvas.width / steps >= CROSSED_FROM * ratio && height >= CROSSED_FROM) crossBad(context, rows, canvas.width / steps, height * ratio);
}

function hatchAll(context, { width, height }) {
  const tile = new OffscreenCanvas(8, 8);
  const pen = tile.getContext("2d");
  pen.strokeStyle = token("--line");
  pen.beginPath();
  for (const from of [-8, 0, 8]) {
    pen.moveTo(from, 8);
    pen.lineTo(from + 8, 0);
  }
  pen.stroke();
  context.fillStyle = context.createPattern(tile, "repeat");
  context.fillRect(0, 0, width, height);
}

function cellImage(rows, columns, shades, scale) {
  const image = new ImageData(columns, rows.length);
  rows.forEach(({ values, bad }, row) => {
    for (let column = 0; column < columns; column++) {
      const from = Math.floor((column * values.length) / columns);
      const until = Math.max(from + 1, Math.floor(((column + 1) * values.length) / columns));
      const at = 4 * (row * columns + column);
      const color = cellColor(values, bad, from, until, shades, scale);
      if (color) image.data.set(color, at);
    }
  });
  const small = new OffscreenCanvas(columns, rows.length);
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}

/** The colour of some steps together: of one that is not finite, else of the largest figure; null without any. */
function cellColor(values, bad, from, until, shades, scale) {
  let best = null;
  for (let i = from; i < until; i++) {
    if (bad[i]) return BAD_COLOR;
    if (values[i] !== ABSENT && Number.isFinite(values[i]) && (best === null || Math.abs(values[i]) > Math.abs(best))) best = values[i];
  }
  if (best === null || !scale) return null;
  const shade = 4 * scale.shade(best);
  return shades.subarray(shade, shade + 4);
}

function crossBad(context, rows, width, height) {
  context.strokeStyle = "#fff";
  context.beginPath();
  rows.forEach(({ bad }, row) => bad.forEach((one, step) => {
    if (!one) return;
    const [left, top, inset] = [step * width, row * height, Math.min(width, height) * 0.3];
    context.moveTo(left + inset, top + inset);
    context.lineTo(left + width - inset, top + height - inset);
    context.moveTo(left + width - inset, top + inset);
    context.lineTo(left + inset, top + height - inset);
  }));
  context.stroke();
}
