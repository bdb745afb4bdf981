// What the lines of a panel are: below it, ours beside the authors' and the paper's, each with links to its runs.
Nero.key = (() => {
  "use strict";

  const { html, unbroken, runLink } = Nero.dom;

  function seed(id, place) {
    return /-s(\d+)-[^-]*$/.exec(id)?.[1] ?? String(place + 1);
  }

  // A curve over epochs has a run per seed; one over learning rates has a run per rate, all of one seed.
  function runLinks({ runs, x }) {
    if (!runs?.length) return null;
    const seeds = runs.map(seed);
    const rates = runs.length > 1 && new Set(seeds).size === 1;
    const names = rates ? x.map((lr) => Nero.numbers.significant(lr)) : seeds;
    const links = runs.map((id, place) => {
      const link = runLink(id, names[place]);
      link.setAttribute("aria-label", `run ${id}`);
      return link;
    });
    const parts = links.flatMap((link, place) => (place ? [", ", link] : [link]));
    return html("span", { class: "of-runs" }, rates ? " η = " : runs.length > 1 ? " seeds " : " seed ", parts);
  }

  function curveEntry(chart, series, place) {
    const swatch = html("span", { class: "swatch", "data-dash": series.dash });
    Nero.colours.ink(swatch, series.colour, series.whose === "authors");
    const lead = { pointerenter: () => chart.lead(place), pointerleave: () => chart.lead(null) };
    const attributes = { "data-group": series.group, "data-series": place, ...lead };
    const label = html("span", { class: "label" }, unbroken(series.label));
    return html("li", attributes, swatch, label, runLinks(series));
  }

  function markEntry(mark) {
    const swatch = Nero.colours.ink(html("span", { class: "swatch paper" }), mark.colour);
    return html("li", { "data-group": mark.group }, swatch, html("span", { class: "label" }, unbroken(mark.label)));
  }

  function build(chart) {
    const { series, marks = [] } = chart.panel;
    const entries = (whose) => series.map((one, place) => (one.whose === whose ? curveEntry(chart, one, place) : null));
    const lists = [entries("ours"), [...entries("authors"), ...marks.map(markEntry)]];
    const filled = lists.map((list) => list.filter(Boolean)).filter((list) => list.length);
    return html("div", { class: "key" }, filled.map((list) => html("ul", {}, list)));
  }

  function dim(key, hidden) {
    for (const entry of key.querySelectorAll("[data-group]")) {
      entry.classList.toggle("off", hidden.has(entry.dataset.group));
    }
  }

  return { build, dim };
})();
