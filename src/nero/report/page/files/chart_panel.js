// A panel of a figure as traces and layout for plotly: bands over seeds, means, the paper's marks.
Nero.chartPanel = (() => {
  "use strict";

  const { isNumber, measured } = Nero.numbers;
  const { drawn } = Nero.colours;
  const DASHES = { solid: "solid", dashed: "dash", dotted: "dot" };
  const FEW = 12; // points, up to which each of them is marked
  const STRIP = 0.035; // of the x axis, between the paper's marks
  const MINUTE = 60;
  const PAPER = { light: ["#ffffff", "#565c66", "#e6e7ea", "#3a3f47"], dark: ["#16191f", "#a7aebb", "#2b303a", "#a7aebb"] };

  // Whether curves can be drawn against time.
  function isTimed(panel) {
    return panel.series.some(({ seconds }) => seconds);
  }

  // The panel against minutes of training: the paper and its authors logged no time, so what is theirs is left out.
  function overTime(panel) {
    if (!isTimed(panel)) return panel;
    const series = panel.series
      .filter(({ seconds }) => seconds)
      .map((one) => ({ ...one, x: one.seconds.map((value) => value / MINUTE) }));
    const most = Math.max(...series.flatMap(({ x }) => x.filter(isNumber)));
    return { ...panel, series, marks: [], xlabel: "minutes of training (some runs shared their GPU)", xlim: [0, most], timed: true };
  }

  // Polygons around unbroken stretches of a band.
  function band(series) {
    const { x, low, high } = series;
    const [xs, ys] = [[], []];
    let from = null;
    for (let place = 0; place <= x.length; place++) {
      const whole = place < x.length && isNumber(low[place]) && isNumber(high[place]);
      if (whole && from === null) from = place;
      if (whole || from === null) continue;
      const places = Array.from({ length: place - from }, (_, step) => from + step);
      const back = places.toReversed();
      xs.push(...places.map((at) => x[at]), ...back.map((at) => x[at]), null);
      ys.push(...places.map((at) => high[at]), ...back.map((at) => low[at]), null);
      from = null;
    }
    return { x: xs, y: ys };
  }

  function translucent(colour, part) {
    return colour.replace("rgb(", "rgba(").replace(")", `,${part})`);
  }

  function bandTrace(series, dark) {
    const fill = { fill: "toself", fillcolor: translucent(drawn(series.colour, false, dark), 0.2), line: { width: 0 } };
    return { ...band(series), ...fill, mode: "lines", hoverinfo: "skip", showlegend: false, name: series.group };
  }

  function spread({ low, high }, place) {
    const known = low && isNumber(low[place]) && isNumber(high[place]) && low[place] !== high[place];
    return known ? ` (${measured(low[place])} to ${measured(high[place])})` : "";
  }

  function lineTrace(series, dark) {
    const colour = drawn(series.colour, series.whose === "authors", dark);
    const few = series.mean.filter(isNumber).length <= FEW;
    return {
      x: series.x,
      y: series.mean,
      name: series.label,
      mode: few ? "lines+markers" : "lines",
      line: { color: colour, width: 2, dash: DASHES[series.dash] ?? "solid" },
      marker: { color: colour, size: 5 },
      text: series.mean.map((mean, place) => `${measured(mean)}${spread(series, place)}`),
      hovertemplate: `%{text} ${escaped(series.whose === "authors" ? series.label : series.group)}<extra></extra>`,
      meta: { series: true },
    };
  }

  // Plotly reads labels as markup.
  function escaped(text) {
    return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  }

  function markTrace(mark, place, panel, dark) {
    const [low, high] = panel.xlim;
    const colour = drawn(mark.colour, true, dark);
    return {
      x: [high + (high - low) * STRIP * (place + 1)],
      y: [mark.mean],
      error_y: { type: "data", array: [mark.std], color: translucent(colour, 0.5), thickness: 5, width: 0 },
      mode: "markers",
      marker: { symbol: "line-ew", size: 11, line: { color: colour, width: 2.5 } },
      name: mark.label,
      hovertemplate: `${escaped(mark.label)}<extra></extra>`,
    };
  }

  function signTrace({ x, y, colour, label }, symbol, axis, dark) {
    const ink = drawn(colour, false, dark);
    const marker = { symbol, size: symbol === "x-thin" ? 8 : 13, color: ink, line: { color: ink, width: 2 } };
    return { x, y, yaxis: axis, mode: "markers", marker, name: label, hovertemplate: `${escaped(label)}<extra></extra>` };
  }

  // The paper's rates, and those that diverged, at the edge of worse values.
  function signTraces(panel, hidden, dark) {
    const rings = (panel.rings ?? []).filter(({ group }) => !hidden.has(group));
    const crosses = (panel.crosses ?? []).filter(({ group }) => !hidden.has(group));
    const list = (value) => (Array.isArray(value) ? value : [value]);
    return [
      ...rings.map((ring) => signTrace({ ...ring, x: list(ring.x), y: list(ring.y) }, "circle-open", "y", dark)),
      ...crosses.map((cross, place) => {
        const y = list(cross.x).map(() => 0.97 - 0.045 * place);
        return signTrace({ ...cross, x: list(cross.x), y }, "x-thin", "y2", dark);
      }),
    ];
  }

  function traces(panel, hidden, dark) {
    const shown = panel.series.filter(({ group }) => !hidden.has(group));
    const [theirs, ours] = [true, false].map((own) => shown.filter(({ whose }) => (whose === "authors") === own));
    const marks = (panel.marks ?? []).filter(({ group }) => !hidden.has(group));
    return [
      ...shown.filter(({ low }) => low).map((series) => bandTrace(series, dark)),
      ...[...ours, ...theirs].map((series) => lineTrace(series, dark)),
      ...marks.map((mark) => markTrace(mark, panel.marks.indexOf(mark), panel, dark)),
      ...signTraces(panel, hidden, dark),
    ];
  }

  function range([low, high], kind) {
    return kind === "log" ? [Math.log10(low), Math.log10(high)] : [low, high];
  }

  function rule({ at, label }, ink) {
    const line = { type: "line", xref: "paper", x0: 0, x1: 1, y0: at, y1: at, line: { color: ink, width: 1, dash: "dashdot" } };
    const y = { yref: "y", y: at, yanchor: "top", yshift: -2 };
    const words = { text: escaped(label), xref: "paper", x: 0, xanchor: "left", showarrow: false, font: { size: 11 }, ...y };
    return { shapes: [line], annotations: [words] };
  }

  function strip(panel, marks) {
    if (!marks.length) return [];
    const [low, high] = panel.xlim;
    const edge = (place) => high + (high - low) * STRIP * place;
    const place = { xref: "x", yref: "paper", x0: edge(0.4), x1: edge(panel.marks.length + 0.6), y0: 0, y1: 1 };
    return [{ type: "rect", ...place, fillcolor: "rgba(128,128,128,0.13)", line: { width: 0 }, layer: "below" }];
  }

  function end(panel) {
    const [low, high] = panel.xlim;
    const margin = (high - low) * 0.015;
    const marks = panel.marks ?? [];
    const right = marks.length ? high + (high - low) * STRIP * (marks.length + 0.6) : high + margin;
    return panel.xscale === "log" ? [low, high] : [low - margin, right];
  }

  // `view` is the zoomed part, or null for the whole.
  function layout(panel, view, dark) {
    const [paper, soft, grid, axis] = PAPER[dark ? "dark" : "light"];
    const line = { gridcolor: grid, linecolor: axis, showline: true, zeroline: false, ticks: "outside", tickcolor: axis };
    const plain = { automargin: true, title: { standoff: 6 } };
    const x = { ...line, ...plain, type: panel.xscale, range: view?.x ?? range(end(panel), panel.xscale), hoverformat: ".6~g" };
    const y = { ...line, ...plain, type: panel.yscale, range: view?.y ?? range(panel.ylim, panel.yscale) };
    if (!view && panel.yticks?.length) {
      Object.assign(y, { tickvals: panel.yticks.map(([at]) => at), ticktext: panel.yticks.map(([, words]) => words) });
    } else if (panel.yscale === "log") Object.assign(y, { tickformat: "~g", nticks: 7 });
    if (panel.xscale === "log") Object.assign(x, { dtick: 1, tickformat: "~g" });
    const marks = panel.marks ?? [];
    const ruled = panel.rule ? rule(panel.rule, axis) : {};
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: soft },
      paper_bgcolor: paper,
      plot_bgcolor: paper,
      margin: { l: 46, r: 8, t: 8, b: 40 },
      showlegend: false,
      hovermode: "x unified",
      hoverlabel: { bgcolor: paper, font: { size: 12, color: soft } },
      dragmode: "zoom",
      xaxis: { ...x, title: { text: escaped(panel.xlabel), standoff: 6 } },
      yaxis: y,
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      ...ruled,
      shapes: [...(ruled.shapes ?? []), ...(panel.xscale === "log" ? [] : strip(panel, marks))],
    };
  }

  return { isTimed, overTime, traces, layout, escaped };
})();
