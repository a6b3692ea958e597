// Tabs of views; a view is mounted when its tab is first shown.

import { h } from "./dom.js";
import { count } from "./format.js";

/**
 * Mount the tabs.
 * @param {() => void} moved called when another tab is shown
 * @returns {{shown: () => Mounted|undefined, show: (id: string) => void, now: () => string}}
 */
export function mountTabs(container, views, context, moved) {
  const mounted = new Map();
  let now = null;
  const tabs = views.map((view) => {
    const click = () => {
      show(view);
      moved();
    };
    const number = view.total === undefined ? null : h("span", { class: "count" }, count(view.total));
    return h("button", { type: "button", role: "tab", id: `tab-${view.id}`, "aria-controls": `view-${view.id}`, on: { click } }, view.title, number);
  });
  const panels = views.map((view) => h("section", { class: "panel", role: "tabpanel", id: `view-${view.id}`, "aria-labelledby": `tab-${view.id}`, hidden: true }));
  const show = (view) => {
    views.forEach((each, i) => {
      panels[i].hidden = each !== view;
      tabs[i].setAttribute("aria-selected", String(each === view));
      tabs[i].tabIndex = each === view ? 0 : -1;
    });
    now = view;
    if (!mounted.has(view)) mounted.set(view, mountedIn(panels[views.indexOf(view)], view, context));
    mounted.get(view).show?.();
  };
  const on = { keydown: (event) => arrow(event, tabs) };
  container.append(h("div", { class: "tabs", role: "tablist", "aria-label": "Views", hidden: views.length < 2, on }, tabs), ...panels);
  if (views.length) show(views[0]);
  const showNamed = (id) => views.filter((view) => view.id === id && view !== now).forEach(show);
  return { shown: () => mounted.get(now), show: showNamed, now: () => now?.id ?? "" };
}

/** Mount a view, or say why it can't be: its data may have been edited, and other views still have theirs. */
function mountedIn(panel, view, context) {
  try {
    return view.mount(panel, context) ?? {};
  } catch (error) {
    panel.replaceChildren(h("p", { class: "failure", role: "alert" }, `This view can't be shown: ${error}`));
    setTimeout(() => { throw error; }); // for the console
    return {};
  }
}

function arrow(event, tabs) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
  event.preventDefault();
}
