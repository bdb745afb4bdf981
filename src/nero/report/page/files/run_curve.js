// One run's own curve, as a panel of a single series.
Nero.runCurve = (() => {
  "use strict";

  const { isNumber } = Nero.numbers;
  const PLAIN = "#0072B2";
  const STEEP = 20; // highest to lowest, from which a log scale shows more
  const MARGIN = 0.05;

  // The optimiser's colour in the figures, where it is drawn in any.
  function colour(optim) {
    const found = Nero.figures.all.find(({ groups }) => groups.has(optim));
    return found ? found.groups.get(optim) : PLAIN;
  }

  function limits(values, kind) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const apart = low < high ? [low, high] : [low - Math.abs(low || 1) * MARGIN, high + Math.abs(high || 1) * MARGIN];
    return Nero.scales.widened(kind, apart, MARGIN);
  }

  function panel(run) {
    const { x, y, xlabel, ylabel } = run.curve;
    const values = y.filter(isNumber);
    const steep = Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > STEEP;
    const yscale = steep ? "log" : "linear";
    const look = { group: run.optim, colour: colour(run.optim), dash: "solid", whose: "ours" };
    const series = { label: run.id, ...look, x, mean: y };
    const xlim = x.length > 1 ? [Math.min(0, x[0]), x.at(-1)] : [0, Math.max(1, x[0] * 2)];
    return { title: "", xlabel, ylabel, xlim, ylim: limits(values, yscale), yscale, series: [series] };
  }

  function build(run) {
    return run.curve?.y.some(isNumber) ? new Nero.Chart(panel(run)).element : null;
  }

  return { build };
})();
