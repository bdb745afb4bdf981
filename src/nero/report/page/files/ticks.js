// Round numbers along an axis.
Nero.ticks = (() => {
  "use strict";

  const STEPS = [1, 2, 2.5, 5, 10];
  const DECADES = [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]; // dense to sparse
  const NARROW = 2.5; // highest to lowest of a log axis, below which equal steps read better

  function decimalsOf(step) {
    let decimals = 0;
    while (decimals < 12 && Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) > 1e-6) decimals++;
    return decimals;
  }

  function linear([low, high], most) {
    const rough = (high - low) / Math.max(most, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * STEPS.find((size) => size * power >= rough * 0.999);
    const decimals = decimalsOf(step);
    const ticks = [];
    for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++) {
      ticks.push([place * step, (place * step || 0).toFixed(decimals)]); // -0 is written 0
    }
    return ticks;
  }

  function inDecades([low, high], sizes, every) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      if (power % every !== 0) continue;
      for (const size of sizes) {
        const value = size * 10 ** power;
        if (value >= low * 0.9999 && value <= high * 1.0001) ticks.push([value, Nero.numbers.significant(value)]);
      }
    }
    return ticks;
  }

  function logarithmic(domain, most) {
    if (domain[1] / domain[0] < NARROW) return linear(domain, most);
    const fitting = DECADES.map((sizes) => inDecades(domain, sizes, 1)).find((ticks) => ticks.length <= most);
    const every = Math.ceil(Math.log10(domain[1] / domain[0]) / Math.max(most, 1));
    return fitting ?? inDecades(domain, [1], Math.max(every, 1));
  }

  function choose(kind, domain, most) {
    return kind === "log" ? logarithmic(domain, most) : linear(domain, most);
  }

  return { choose };
})();
