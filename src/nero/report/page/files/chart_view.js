// The part of a panel that a chart shows: zooming in and out never leaves the panel's own limits.
Nero.view = (() => {
  "use strict";

  const { clamp } = Nero.numbers;
  const STEPS = 2; // of the finest series: zooming in further would show no more
  const FINEST = 1e-3; // of the whole
  const MARGIN = 0.06;

  function leastSpan(chart) {
    const [low, high] = chart.base.x;
    const step = Nero.points.smallestStep(chart.shown);
    return Math.min(high - low, Math.max((high - low) * FINEST, Number.isFinite(step) ? STEPS * step : 0));
  }

  function within([low, high], [least, most], span) {
    const wide = clamp(high - low, span, most - least);
    const start = clamp((low + high - wide) / 2, least, most - wide);
    return [start, start + wide];
  }

  function around(value) {
    const margin = Math.abs(value || 1) * MARGIN;
    return [value - margin, value + margin];
  }

  // The heights that the shown curves take for these x, so that a zoom along x alone fills the plot.
  function fitted(chart, x) {
    const { panel, base } = chart;
    const found = Nero.points.extent(chart.shown, x, panel.yscale === "log");
    if (!found) return base.y;
    const room = found[0] < found[1] ? found : around(found[0]);
    const [low, high] = Nero.scales.widened(panel.yscale, room, MARGIN).map((value) => clamp(value, ...base.y));
    return high > low ? [low, high] : base.y;
  }

  function alongX(chart, range) {
    const x = within(range, chart.base.x, leastSpan(chart));
    return isWhole(chart, x) ? chart.base : { x, y: fitted(chart, x) };
  }

  function isWhole(chart, [low, high]) {
    const [least, most] = chart.base.x;
    return high - low >= (most - least) * 0.9999;
  }

  function box(chart, x, y) {
    return { x: within(x, chart.base.x, leastSpan(chart)), y: y.map((value) => clamp(value, ...chart.base.y)) };
  }

  function scaled(chart, x, factor) {
    const [low, high] = chart.view.x;
    return alongX(chart, [x - (x - low) * factor, x + (high - x) * factor]);
  }

  // Sideways just far enough that x is seen.
  function holding(chart, x) {
    const [low, high] = chart.view.x;
    const shift = Math.min(0, x - low) + Math.max(0, x - high);
    return shift ? alongX(chart, [low + shift, high + shift]) : chart.view;
  }

  return { alongX, box, scaled, holding };
})();
