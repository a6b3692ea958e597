// Light and dark, and colours of figures: scales that people with colour-blindness can read, for canvas and for CSS.

// Viridis (Smith and van der Walt, CC0) at eighths.
const SEQUENTIAL = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
// Blue to orange through the page's own background.
const BLUES = [[33, 102, 172], [103, 169, 207]];
const ORANGES = [[244, 165, 96], [204, 85, 0]];
const MIDDLE = { light: [247, 247, 247], dark: [38, 42, 48] };
const THEME_KEY = "hookcli-theme";
const darkSystem = matchMedia("(prefers-color-scheme: dark)");

/** The theme that the reader chose; "" is the system's. */
export let chosenTheme = keptTheme();
darkSystem.addEventListener("change", applyTheme);
applyTheme();

/** Show and keep the theme that the reader chose. */
export function setTheme(asked) {
  chosenTheme = keptTheme(asked);
  applyTheme();
}

/** Read or write the choice; frames and private windows may have no storage. */
function keptTheme(asked) {
  try {
    if (asked !== undefined) localStorage.setItem(THEME_KEY, asked);
    const kept = localStorage.getItem(THEME_KEY);
    return kept === "light" || kept === "dark" ? kept : "";
  } catch {
    return asked ?? "";
  }
}

function applyTheme() {
  if (chosenTheme) document.documentElement.dataset.theme = chosenTheme;
  else delete document.documentElement.dataset.theme;
  document.dispatchEvent(new Event("theme"));
}

/** Call the function at every change of the theme, as long as the element is on the page. */
export function onTheme(element, listener) {
  const changed = () => (element.isConnected ? listener() : document.removeEventListener("theme", changed));
  document.addEventListener("theme", changed);
}

function between(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const left = Math.min(Math.floor(place), stops.length - 2);
  return stops[left].map((from, i) => Math.round(from + (stops[left + 1][i] - from) * (place - left)));
}

/** The colour of a share from 0 to 1 as [red, green, blue]. */
export function sequential(share) {
  return between(SEQUENTIAL, share);
}

/** The colour of a share from -1 (blue) over 0 (nothing) to 1 (orange), in the theme that the page has now. */
export function diverging(share) {
  const theme = chosenTheme || (darkSystem.matches ? "dark" : "light");
  return between([...BLUES, MIDDLE[theme], ...ORANGES], (share + 1) / 2);
}

/** The colour for CSS and canvas. */
export function css([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}

/** A colour of the style sheet as canvas takes it: `token("--accent")`. It changes with the theme. */
export function token(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * Where numbers lie on a scale from 0 to 1: by their logarithm if they are positive and span more than a factor of 50.
 * @returns {{log: boolean, low: number, high: number, at: (value: number|null) => number|null}}
 */
export function scaleOf(values) {
  let [low, high, least] = [Infinity, -Infinity, Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
    if (value > 0) least = Math.min(least, value);
  }
  const log = low >= 0 && high / least > 50;
  const [from, to] = log ? [Math.log(least), Math.log(high)] : [low, high];
  const place = (value) => (to > from ? ((log ? Math.log(Math.max(value, least)) : value) - from) / (to - from) : 0.5);
  return { log, low, high, at: (value) => (Number.isFinite(value) ? place(value) : null) };
}
