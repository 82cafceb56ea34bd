// Sets the chosen colours before anything is drawn. Without a choice the system's colours apply.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("wal2lake.theme");
  } catch {
    // Storage is refused: the choice lasts as long as the page.
  }
  if (chosen === "light" || chosen === "dark") {
    document.documentElement.dataset.theme = chosen;
  }
})();
