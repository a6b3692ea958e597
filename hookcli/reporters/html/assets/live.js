// Keeps the page of a growing record up to date.

import { h } from "./dom.js";

/**
 * Fetch new steps as long as the record grows.
 * @param {{path: string, seconds: number, version: string}} live
 */
export function followLive({ path, seconds, version }, view) {
  let have = version;
  const state = h("p", { class: "live", role: "status" }, "live");
  document.body.append(state);
  const say = (text, lost) => {
    state.textContent = text;
    state.classList.toggle("live-lost", lost);
  };
  const look = async () => {
    const answer = await fetch(`${path}?have=${encodeURIComponent(have)}`);
    if (answer.status === 205) location.reload(); // another run has replaced the record
    if (answer.status !== 200) return;
    const found = await answer.json();
    have = found.version;
    await view.take(found);
  };
  const again = async () => {
    try {
      await look();
      say(`live · ${have.split(".").slice(2).reduce((sum, n) => sum + Number(n), 0).toLocaleString("en-US")} steps`, false);
    } catch {
      say("no longer live: hookcli report --serve has ended", true);
    }
    setTimeout(again, 1000 * seconds);
  };
  setTimeout(again, 1000 * seconds);
}
