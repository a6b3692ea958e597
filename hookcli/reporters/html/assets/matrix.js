// Unpacks the figures of a record: matrices of modules by steps (hookcli/record/file/page/matrix.py packs them).

const ABSENT_MANTISSA = 32767;
const OTHER_MANTISSAS = { 32766: NaN, 32765: Infinity, 32764: -Infinity };
const EXACT_POWERS = Array.from({ length: 23 }, (_, power) => 10 ** power); // of ten, as floating point has them
export const ABSENT = -1.2345678901234567e308; // stands in a matrix where nothing was measured: NaN is a figure

/** The figures in a text, in its order; ABSENT where there is none. */
export async function unpackFigures(text) {
  const bytes = await unpacked(text, "deflate");
  const size = bytes.length / 4;
  const found = new Float64Array(size);
  for (let i = 0; i < size; i++) {
    const mantissa = bytes[i] | (bytes[size + i] << 8);
    found[i] = figureFrom((mantissa << 16) >> 16, ((bytes[2 * size + i] | (bytes[3 * size + i] << 8)) << 16) >> 16);
  }
  return found;
}

function figureFrom(mantissa, exponent) {
  if (mantissa >= 32764) return mantissa === ABSENT_MANTISSA ? ABSENT : OTHER_MANTISSAS[mantissa];
  if (exponent < 0) return exponent >= -22 ? mantissa / EXACT_POWERS[-exponent] : Number(`${mantissa}e${exponent}`);
  return exponent <= 22 ? mantissa * EXACT_POWERS[exponent] : Number(`${mantissa}e${exponent}`);
}

/** The exact counts in a text; ABSENT where there is none. */
export async function unpackCounts(text) {
  const bytes = await unpacked(text, "deflate");
  return new Float64Array(bytes.buffer).map((count) => (Number.isNaN(count) ? ABSENT : count));
}

/** The bytes in a text: base64 of what was compressed so. */
export async function unpacked(text, format) {
  const binary = atob(text);
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < packed.length; i++) packed[i] = binary.charCodeAt(i); // Uint8Array.from takes ten times as long
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream(format));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
