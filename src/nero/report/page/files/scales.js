// Between values and pixels, linear or logarithmic.
Nero.scales = (() => {
  "use strict";

  const LEAST = 1e-300; // zero has no place on a log scale: far below any axis
  const FAR = 1e6; // pixels: what lies further off is drawn there, or browsers lose precision

  const KINDS = {
    linear: { forward: (value) => value, backward: (value) => value },
    log: { forward: (value) => Math.log(Math.max(value, LEAST)), backward: Math.exp },
  };

  function scale(kind, [low, high], [start, end]) {
    const { forward, backward } = KINDS[kind];
    const [first, last] = [forward(low), forward(high)];
    const slope = (end - start) / (last - first);
    return {
      to: (value) => Nero.numbers.clamp(start + (forward(value) - first) * slope, -FAR, FAR),
      from: (pixel) => backward(first + (pixel - start) / slope),
    };
  }

  // The interval that ends `part` of its own length further out, on either side.
  function widened(kind, [low, high], part) {
    const { forward, backward } = KINDS[kind];
    const margin = (forward(high) - forward(low)) * part;
    return [backward(forward(low) - margin), backward(forward(high) + margin)];
  }

  return { scale, widened };
})();
