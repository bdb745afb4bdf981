// The keyboard: arrows walk the crosshair through the points, + and - zoom around it, 0 and Escape show the whole.
Nero.keys = (() => {
  "use strict";

  const { clamp } = Nero.numbers;
  const STRIDE = 10;
  const FACTOR = 2;
  const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -STRIDE, PageDown: STRIDE };

  function isSeen(chart, x) {
    return x >= chart.view.x[0] && x <= chart.view.x[1];
  }

  function firstSeen(chart, places, step) {
    const seen = places.filter((x) => isSeen(chart, x));
    return step > 0 ? seen[0] : seen.at(-1);
  }

  function walk(chart, step) {
    const places = Nero.points.places(chart.shown);
    if (!places.length) return;
    const started = chart.cursor !== null && isSeen(chart, chart.cursor);
    const place = Nero.points.nearestPlace(places, chart.cursor ?? 0) + step;
    const x = started ? places[clamp(place, 0, places.length - 1)] : firstSeen(chart, places, step);
    if (x !== undefined) moveTo(chart, x);
  }

  function jump(chart, end) {
    const x = Nero.points.places(chart.shown).at(end);
    if (x !== undefined) moveTo(chart, x);
  }

  function moveTo(chart, x) {
    chart.show(Nero.view.holding(chart, x));
    chart.read(x);
    chart.say();
  }

  function zoom(chart, factor) {
    const centre = chart.cursor ?? (chart.view.x[0] + chart.view.x[1]) / 2;
    chart.show(Nero.view.scaled(chart, centre, factor));
    chart.sayView();
  }

  // False where there is nothing to undo: then Escape may close what the chart stands in.
  function back(chart) {
    const busy = chart.zoomed || chart.cursor !== null;
    chart.leave();
    chart.reset();
    return busy;
  }

  function act(chart, key) {
    if (key in STEPS) walk(chart, STEPS[key]);
    else if (key === "Home" || key === "End") jump(chart, key === "Home" ? 0 : -1);
    else if (key === "+" || key === "=") zoom(chart, 1 / FACTOR);
    else if (key === "-" || key === "_") zoom(chart, FACTOR);
    else if (key === "0" || key === "Escape") return back(chart) || key === "0";
    else return false;
    return true;
  }

  function wire(chart) {
    chart.plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !chart.frame) return;
      if (act(chart, event.key)) event.preventDefault();
    });
    chart.plot.addEventListener("blur", () => chart.leave());
  }

  return { wire };
})();
