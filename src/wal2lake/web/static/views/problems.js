// Problems: each in words, errors first, by the person who can end it.

import { h, sign } from "../dom.js";
import { count, plural } from "../format.js";
import { problemCard } from "./parts.js";

export const title = () => "Problems";

export function render(page) {
  const { problems, total, errors } = page.store.problems;
  if (total === 0) {
    return [h("h1", { tabindex: -1 }, "Problems"),
      h("div", { class: "verdict ok" }, sign("ok"), h("p", { class: "lead" }, "There is none."))];
  }
  return [
    h("div", { class: "head" }, h("h1", { tabindex: -1 }, "Problems"),
      h("p", { class: "lead" }, `${plural(errors, "error")}, ${plural(total - errors, "warning")}`)),
    problems.map((one) => problemCard(page, one, "h2")),
    total > problems.length
      ? h("p", { class: "empty" }, `${count(total - problems.length)} more are not shown: `, h("code", {}, "SELECT * FROM wal2lake.problems;"))
      : null,
  ];
}
