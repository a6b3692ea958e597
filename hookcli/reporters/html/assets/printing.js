// Printing: a page that scrolls prints all its rows.

/** Draw every row of the shown view before printing, and only those in sight after it. */
export function mountPrinting(shown) {
  addEventListener("beforeprint", () => shown()?.print?.(true));
  addEventListener("afterprint", () => shown()?.print?.(false));
}
