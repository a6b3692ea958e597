// Light and dark: as the system has it, or as the reader chose.

const KEY = "hookcli-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

/**
 * The theme, and the switch between themes.
 * @returns {{asked: string, current: () => "light"|"dark", set: (asked: string) => void, onChange: (listener: () => void) => void}}
 */
export function themeSwitch() {
  const listeners = [];
  const theme = {
    asked: remember(),
    current: () => theme.asked || (dark.matches ? "dark" : "light"),
    set: (asked) => {
      theme.asked = asked;
      remember(asked);
      apply();
    },
    onChange: (listener) => listeners.push(listener),
  };
  const apply = () => {
    if (theme.asked) document.documentElement.dataset.theme = theme.asked;
    else delete document.documentElement.dataset.theme;
    listeners.forEach((listener) => listener());
  };
  dark.addEventListener("change", apply);
  apply();
  return theme;
}

/** Read or write the choice; frames and private windows may have no storage. */
function remember(asked) {
  try {
    if (asked !== undefined) localStorage.setItem(KEY, asked);
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : "";
  } catch {
    return asked ?? "";
  }
}
