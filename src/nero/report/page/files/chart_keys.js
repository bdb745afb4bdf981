// The keyboard: arrows walk through the points, + and - zoom along x, 0 and Escape show the whole.
Nero.keys = (() => {
  "use strict";

  const { clamp } = Nero.numbers;
  const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
  const FACTOR = 2;

  function seen(chart) {
    const [low, high] = chart.xrange;
    const found = new Set(chart.shown.flatMap(({ x }) => x));
    return [...found].filter((x) => x >= low && x <= high).sort((one, other) => one - other);
  }

  function walk(chart, step) {
    const places = seen(chart);
    if (!places.length) return;
    const at = places.indexOf(chart.cursor);
    const first = step > 0 ? 0 : places.length - 1;
    chart.read(places[at < 0 ? first : clamp(at + step, 0, places.length - 1)]);
  }

  function zoom(chart, factor) {
    const [low, high] = chart.xrange;
    const centre = chart.cursor ?? (low + high) / 2;
    chart.zoom([centre - (centre - low) * factor, centre + (high - centre) * factor]);
  }

  // False where there is nothing to undo: then Escape may close what the chart stands in.
  function back(chart) {
    const busy = chart.view !== null || chart.cursor !== null;
    chart.leave();
    chart.reset();
    return busy;
  }

  function act(chart, key) {
    if (key in STEPS) walk(chart, STEPS[key]);
    else if (key === "Home" || key === "End") chart.read(seen(chart).at(key === "Home" ? 0 : -1));
    else if (key === "+" || key === "=") zoom(chart, 1 / FACTOR);
    else if (key === "-" || key === "_") zoom(chart, FACTOR);
    else if (key === "0" || key === "Escape") return back(chart) || key === "0";
    else return false;
    return true;
  }

  function wire(chart) {
    chart.plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !chart.drawn) return;
      if (!act(chart, event.key)) return;
      event.preventDefault();
      event.stopPropagation();
    });
    chart.plot.addEventListener("blur", () => chart.leave());
  }

  return { wire };
})();
