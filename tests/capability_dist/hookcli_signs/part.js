// The part of a page: a line per layer.
import { h } from "./dom.js";
import { addPart } from "./parts.js";

const rows = (model) => model.reports("signs").flatMap((report) => report.rows);

addPart({
  id: "signs",
  title: "Signs",
  drawn: (model) => rows(model).map(({ fqn }) => fqn), // no tab without rows
  mount(container, { model }) {
    container.append(h("ul", { class: "signs-of-layers" }, rows(model).map(({ fqn, positive }) => h("li", {}, `${fqn}: ${positive}`))));
  },
});
