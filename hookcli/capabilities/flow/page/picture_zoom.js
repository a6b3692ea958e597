// Moves and zooms the forward picture: the element scrolls, and the drawing in it has a scale.

const LEAST_SCALE = 0.05;
const GREATEST_SCALE = 4;

/** Makes an element show an SVG drawing that can be moved and zoomed. */
export class Zoom {
  constructor(element) {
    Object.assign(this, { element, scale: 1, size: { width: 1, height: 1 }, svg: null, fitted: true, moved: 0 });
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    element.addEventListener("pointerdown", (event) => this.grab(event));
    element.addEventListener("touchmove", (event) => this.pinch(event), { passive: false });
    element.addEventListener("touchend", () => (this.apart = 0));
  }

  /** Show another drawing. */
  replace(svg, size) {
    [this.svg, this.size] = [svg, size];
    this.element.replaceChildren(svg);
    if (this.fitted) this.fit();
    else this.apply();
  }

  apply() {
    this.svg.style.width = `${this.size.width * this.scale}px`;
    this.svg.style.height = `${this.size.height * this.scale}px`;
  }

  /** As much of the picture as can still be read: its width, and its height if that does not make it tiny. */
  fit() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width) return;
    const whole = Math.min(width / this.size.width, height / this.size.height);
    const across = Math.min(width / this.size.width, 1);
    this.scale = Math.max(Math.min(whole, 1) >= 0.6 ? Math.min(whole, 1) : across, LEAST_SCALE);
    this.apply();
    this.fitted = true;
  }

  resized() {
    if (this.fitted && this.svg) this.fit();
  }

  /** Zoom around a point of the element: its middle, or where the pointer is. */
  by(factor, at = [this.element.clientWidth / 2, this.element.clientHeight / 2]) {
    const scale = Math.min(Math.max(this.scale * factor, LEAST_SCALE), GREATEST_SCALE);
    const ratio = scale / this.scale;
    const { scrollLeft, scrollTop } = this.element;
    [this.scale, this.fitted] = [scale, false];
    this.apply();
    this.element.scrollLeft = (scrollLeft + at[0]) * ratio - at[0];
    this.element.scrollTop = (scrollTop + at[1]) * ratio - at[1];
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls
    event.preventDefault();
    const { left, top } = this.element.getBoundingClientRect();
    this.by(Math.exp(-event.deltaY / 300), [event.clientX - left, event.clientY - top]);
  }

  pinch(event) {
    if (event.touches.length !== 2) return;
    event.preventDefault();
    const [a, b] = event.touches;
    const apart = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    const { left, top } = this.element.getBoundingClientRect();
    if (this.apart) this.by(apart / this.apart, [(a.clientX + b.clientX) / 2 - left, (a.clientY + b.clientY) / 2 - top]);
    this.apart = apart;
  }

  /** A mouse drags the picture; fingers scroll it. */
  grab(event) {
    this.moved = 0;
    if (event.button !== 0 || event.pointerType !== "mouse") return;
    const { scrollLeft, scrollTop } = this.element;
    const move = (now) => {
      const [dx, dy] = [now.clientX - event.clientX, now.clientY - event.clientY];
      this.moved = Math.max(this.moved, Math.hypot(dx, dy));
      if (this.dragged()) [this.element.scrollLeft, this.element.scrollTop] = [scrollLeft - dx, scrollTop - dy];
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", () => removeEventListener("pointermove", move), { once: true });
  }

  /** True if the last press moved the picture, so that it was no click. */
  dragged() {
    return this.moved > 4;
  }

  /** Scroll until a place is in sight. */
  reveal(placed) {
    if (!placed) return;
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.element;
    const inset = this.inset();
    const [x, y] = [placed.x * this.scale + inset, placed.y * this.scale];
    const [width, height] = [Math.min(placed.width * this.scale, clientWidth), Math.min(placed.height * this.scale, clientHeight)];
    if (x < scrollLeft || x + width > scrollLeft + clientWidth) this.element.scrollLeft = x + width / 2 - clientWidth / 2;
    if (y < scrollTop || y + height > scrollTop + clientHeight) this.element.scrollTop = y + height / 2 - clientHeight / 2;
  }

  /** The room on the left of a picture that is narrower than the element. */
  inset() {
    return Math.max(0, (this.element.clientWidth - this.size.width * this.scale) / 2);
  }

  /** Scroll so that what was at one place of the drawing is seen where it was, now that it is at another. */
  keep(before, after) {
    if (!before || !after) return;
    this.element.scrollLeft += (after.x - before.x) * this.scale;
    this.element.scrollTop += (after.y - before.y) * this.scale;
  }
}
