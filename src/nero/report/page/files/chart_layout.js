// Where a chart's parts lie, in pixels of its own box.
Nero.layout = (() => {
  "use strict";

  const FONT = 12;
  const TOP = 12;
  const BOTTOM = 42; // tick labels and the x axis' name
  const MARK = 14; // across, for each of the paper's values
  const STRIP = 48; // at least: the word "paper" fits
  const X_TICK = 62; // pixels between ticks, about
  const Y_TICK = 34;
  const Y_LEAST = FONT + 3;

  const pencil = document.createElement("canvas").getContext("2d");

  function widthOf(text) {
    pencil.font = `${FONT}px system-ui, sans-serif`;
    return pencil.measureText(text).width;
  }

  function spaced(ticks, scale) {
    let last = Infinity;
    return ticks.filter(([value]) => {
      const free = last - scale.to(value) >= Y_LEAST;
      if (free) last = scale.to(value);
      return free;
    });
  }

  function yTicks(chart, scale, height) {
    const { panel, view } = chart;
    const given = !chart.zoomed && panel.yticks?.length;
    const most = Math.max(2, Math.round(height / Y_TICK));
    const ticks = given ? panel.yticks : Nero.ticks.choose(panel.yscale, view.y, most);
    const slack = (view.y[1] - view.y[0]) * 1e-9;
    return spaced(ticks.filter(([value]) => value >= view.y[0] - slack && value <= view.y[1] + slack), scale);
  }

  function compute(chart) {
    const { panel, view } = chart;
    const [width, height] = [chart.plot.clientWidth, chart.plot.clientHeight];
    const [top, bottom] = [TOP, height - BOTTOM];
    const y = Nero.scales.scale(panel.yscale, view.y, [bottom, top]);
    const ticks = { y: yTicks(chart, y, bottom - top) };
    const left = Math.ceil(Math.max(18, ...ticks.y.map(([, label]) => widthOf(label)))) + 10;
    const strip = panel.marks?.length ? Math.max(STRIP, (panel.marks.length + 0.6) * MARK) : 0;
    const right = Math.max(left + 40, width - strip - (strip ? 2 : 12));
    const kind = panel.xscale ?? "linear";
    const x = Nero.scales.scale(kind, view.x, [left, right]);
    ticks.x = Nero.ticks.choose(kind, view.x, Math.max(2, Math.round((right - left) / X_TICK)));
    return { width, height, left, right, top, bottom, strip, x, y, ticks };
  }

  return { compute, widthOf };
})();
