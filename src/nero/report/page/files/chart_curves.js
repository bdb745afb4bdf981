// The data of a chart: bands over seeds, mean lines, the paper's marks, a rule.
Nero.curves = (() => {
  "use strict";

  const { svg } = Nero.dom;
  const { isNumber } = Nero.numbers;
  const { ink } = Nero.colours;
  const LINE = 15; // pixels of a line of text

  // Unbroken stretches of places where all the columns have numbers.
  function stretches(...columns) {
    const found = [];
    let current = null;
    columns[0].forEach((_, place) => {
      if (!columns.every((column) => isNumber(column[place]))) current = null;
      else if (current) current.push(place);
      else found.push((current = [place]));
    });
    return found;
  }

  function points(frame, xs, ys, places) {
    return places.map((place) => `${frame.x.to(xs[place]).toFixed(2)} ${frame.y.to(ys[place]).toFixed(2)}`);
  }

  // A stretch of one point is a line of no length, which round caps make a dot of.
  function linePath(frame, { x, mean }) {
    return stretches(mean)
      .map((places) => points(frame, x, mean, places))
      .map((found) => `M${found.join("L")}${found.length === 1 ? "h0" : ""}`)
      .join("");
  }

  function bandPath(frame, { x, low, high }) {
    return stretches(low, high)
      .filter((places) => places.length > 1)
      .map((places) => [...points(frame, x, high, places), ...points(frame, x, low, places.toReversed())])
      .map((found) => `M${found.join("L")}Z`)
      .join("");
  }

  function isAuthors(series) {
    return series.whose === "authors";
  }

  function inked(tag, attributes, series) {
    return ink(svg(tag, attributes), series.colour, isAuthors(series));
  }

  function band(frame, series, place) {
    if (!series.low || !series.high) return null;
    return inked("path", { class: "band", "data-series": place, d: bandPath(frame, series) }, series);
  }

  function line(frame, series, place) {
    const attributes = { "data-series": place, "data-group": series.group, "data-dash": series.dash };
    const single = series.x.length === 1 ? " single" : "";
    return inked("path", { class: `line${single}`, ...attributes, d: linePath(frame, series) }, series);
  }

  function mark(frame, panel, place) {
    const { mean, std, group, colour } = panel.marks[place];
    const x = frame.right + 2 + ((frame.strip - 2) * (place + 0.5)) / panel.marks.length;
    const y = frame.y.to(mean);
    const [high, low] = [frame.y.to(mean + (std || 0)), frame.y.to(mean - (std || 0))];
    return ink(
      svg(
        "g",
        { class: "mark", "data-group": group, "data-mark": place },
        svg("rect", { class: "spread", x: x - 3, y: high, width: 6, height: Math.max(low - high, 0) }),
        svg("line", { class: "value", x1: x - 6, x2: x + 6, y1: y, y2: y }),
      ),
      colour,
    );
  }

  function wrapped(text, width) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const longer = `${lines.at(-1)} ${word}`.trim();
      if (lines.at(-1) && Nero.layout.widthOf(longer) > width) lines.push(word);
      else lines[lines.length - 1] = longer;
    }
    return lines;
  }

  function rule(frame, { at, label }) {
    const y = frame.y.to(at);
    const lines = wrapped(label, frame.right - frame.left - 16);
    const above = y - frame.top > LINE * (lines.length + 1);
    const first = above ? y - 6 - LINE * (lines.length - 1) : y + LINE;
    const words = lines.map((line, place) => svg("text", { x: frame.left + 8, y: first + LINE * place }, line));
    return svg("g", { class: "rule" }, svg("line", { x1: frame.left, x2: frame.right, y1: y, y2: y }), words);
  }

  // Curves are clipped to the axes, marks to the strip; neither may lie over the axis labels.
  function draw(frame, panel, shown, clip) {
    const [width, height] = [frame.right - frame.left, frame.bottom - frame.top];
    const numbered = shown.map((series) => [series, panel.series.indexOf(series)]);
    const [theirs, ours] = [true, false].map((whose) => numbered.filter(([series]) => isAuthors(series) === whose));
    const box = svg("rect", { x: frame.left, y: frame.top - 1, width: width + frame.strip, height: height + 2 });
    const inside = svg("rect", { x: frame.left, y: frame.top - 1, width: width + 1, height: height + 2 });
    return [
      svg("clipPath", { id: `${clip}-box` }, box),
      svg("clipPath", { id: clip }, inside),
      svg(
        "g",
        { class: "curves", "clip-path": `url(#${clip})` },
        numbered.map(([series, place]) => band(frame, series, place)),
        [...ours, ...theirs].map(([series, place]) => line(frame, series, place)),
        panel.rule ? rule(frame, panel.rule) : null,
      ),
    ];
  }

  function drawMarks(frame, panel, hidden, clip) {
    const marks = (panel.marks ?? []).map(({ group }, place) => (hidden.has(group) ? null : mark(frame, panel, place)));
    return svg("g", { class: "marks", "clip-path": `url(#${clip}-box)` }, marks);
  }

  return { draw, drawMarks };
})();
