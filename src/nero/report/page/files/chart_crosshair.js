// The vertical line at an x, a dot on each curve there, and the box of a drag.
Nero.crosshair = (() => {
  "use strict";

  const { svg } = Nero.dom;

  function dot(frame, value) {
    const circle = svg("circle", { class: "dot", cx: frame.x.to(value.x), cy: frame.y.to(value.mean), r: 3.5 });
    return Nero.colours.ink(circle, value.series.colour, value.series.whose === "authors");
  }

  function draw(frame, x, values) {
    const place = frame.x.to(x);
    const inside = values.filter(({ mean }) => {
      const height = frame.y.to(mean);
      return height >= frame.top - 1 && height <= frame.bottom + 1;
    });
    return svg(
      "g",
      { class: "crosshair" },
      svg("line", { x1: place, x2: place, y1: frame.top, y2: frame.bottom }),
      inside.map((value) => dot(frame, value)),
    );
  }

  function selection(box) {
    const place = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
    return svg("rect", { class: "selection", ...place });
  }

  return { draw, selection };
})();
