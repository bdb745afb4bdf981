// Puts everything in its place, once the page has been read.
document.addEventListener("DOMContentLoaded", () => {
  "use strict";

  const { figures = {}, order = [], samples = [], games = [] } = JSON.parse(document.getElementById("figures-data").textContent);
  const runs = document.getElementById("runs");

  // What a link leads to may be in a folded part.
  function reveal() {
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    const own = target?.querySelector(":scope > details.fold");
    if (own) own.open = true;
    if (target) target.scrollIntoView({ behavior: "instant" });
  }

  Nero.figures.build(figures, order);
  Nero.samples.build(samples);
  Nero.games.build(games);
  Nero.pictures.build();
  Nero.bar.build();
  Nero.runDialog.build(samples);
  // The page is longer with the list of runs in it.
  Nero.runList.build(runs).then(() => location.hash === "#runs" && reveal());
  if (["find", "task", "optim", "status", "sort", "runs"].some((key) => Nero.state.get(key))) {
    runs.querySelector("details").open = true;
  }
  window.addEventListener("hashchange", reveal);
  reveal();
});
