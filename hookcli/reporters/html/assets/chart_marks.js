// Marks that a chart draws over uPlot's lines: figures that have no place on the axis, findings, and the chosen point.

const MARK_SIZE = 4; // half of a mark's width, in CSS pixels

/** Draw a vertical line at the chosen point. */
export function drawChosen(plot, x, color) {
  if (x === null || !isInZoom(plot, x)) return;
  const left = Math.round(plot.valToPos(x, "x", true)) + 0.5;
  withPen(plot, color, 1.5, (context) => {
    context.moveTo(left, plot.bbox.top);
    context.lineTo(left, plot.bbox.top + plot.bbox.height);
    context.stroke();
  });
}

/**
 * Draw a cross at the lower edge for NaN and -Infinity, at the upper edge for Infinity, and a short line at the lower
 * edge for figures that a logarithmic axis has no place for, 0 and below.
 */
export function drawOdd(plot, odd, colors) {
  const { top, height } = plot.bbox;
  const size = MARK_SIZE * uPlot.pxRatio;
  for (const { index, value } of odd) {
    const x = plot.data[0][index];
    if (!isInZoom(plot, x)) continue;
    const [left, middle] = [plot.valToPos(x, "x", true), value === Infinity ? top + size : top + height - size];
    const isFinite = Number.isFinite(value);
    const strokes = isFinite ? [[0, 0, 0, size]] : [[-size, -size, size, size], [-size, size, size, -size]];
    withPen(plot, isFinite ? colors.dim : colors.bad, 1.5, (context) => {
      strokes.forEach(([x0, y0, x1, y1]) => {
        context.moveTo(left + x0, middle + y0);
        context.lineTo(left + x1, middle + y1);
      });
      context.stroke();
    });
  }
}

/** Draw a triangle at the upper edge, with a faint line below, for each finding. */
export function drawFindings(plot, marks, colorOf) {
  const { top, height } = plot.bbox;
  const size = (MARK_SIZE + 1) * uPlot.pxRatio;
  for (const { index, severity } of marks) {
    const x = plot.data[0][index];
    if (x === undefined || !isInZoom(plot, x)) continue;
    const left = plot.valToPos(x, "x", true);
    withPen(plot, colorOf(severity), 1, (context) => {
      context.moveTo(left - size, top);
      context.lineTo(left + size, top);
      context.lineTo(left, top + 1.6 * size);
      context.closePath();
      context.fill();
      context.globalAlpha = 0.35;
      context.beginPath();
      context.moveTo(left, top);
      context.lineTo(left, top + height);
      context.stroke();
    });
  }
}

function isInZoom(plot, x) {
  return x >= plot.scales.x.min && x <= plot.scales.x.max;
}

function withPen(plot, color, width, draw) {
  const context = plot.ctx;
  context.save();
  context.strokeStyle = color;
  context.fillStyle = color;
  context.lineWidth = width * uPlot.pxRatio;
  context.beginPath();
  draw(context);
  context.restore();
}
