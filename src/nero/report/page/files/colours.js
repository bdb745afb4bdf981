// A series' colour on light and on dark paper: as the printed figures have it, unless it would not be seen there.
Nero.colours = (() => {
  "use strict";

  const LIGHT = [255, 255, 255];
  const DARK = [22, 25, 31];
  const BLACK = [0, 0, 0];
  const ON_LIGHT = 3; // WCAG's least contrast of graphical objects
  const ON_DARK = [4.5, 9]; // thin lines look dimmer there; what is darkest on light paper is lightest here
  const DISTINCT = 8; // the authors' curves lie on ours: darker on light paper, so lighter on dark

  function parse(hex) {
    return [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
  }

  function luminance(rgb) {
    const [red, green, blue] = rgb.map((channel) => {
      const part = channel / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  function contrast(one, other) {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }

  function mixed(rgb, towards, part) {
    return rgb.map((channel, place) => Math.round(channel + (towards[place] - channel) * part));
  }

  function legible(rgb, paper, towards, least) {
    for (let part = 0; part < 1; part += 0.04) {
      const tried = mixed(rgb, towards, part);
      if (contrast(tried, paper) >= least) return tried;
    }
    return towards;
  }

  // The same hue at full strength: what is mixed with white from there is lighter, but not grey.
  function strong(rgb) {
    const most = Math.max(...rgb);
    return most ? rgb.map((channel) => Math.round((channel * 255) / most)) : rgb;
  }

  function onDark(rgb, authors) {
    if (authors) return legible(strong(rgb), DARK, LIGHT, DISTINCT);
    return legible(rgb, DARK, LIGHT, Nero.numbers.clamp(contrast(rgb, LIGHT), ...ON_DARK));
  }

  function css(rgb) {
    return `rgb(${rgb.join(" ")})`;
  }

  // CSS picks one of the two, so that a change of theme redraws nothing.
  function ink(element, hex, authors = false) {
    const rgb = parse(hex);
    element.classList.add("ink");
    element.style.setProperty("--on-light", css(legible(rgb, LIGHT, BLACK, ON_LIGHT)));
    element.style.setProperty("--on-dark", css(onDark(rgb, authors)));
    return element;
  }

  // The same for a chart, which is drawn again when the theme changes.
  function drawn(hex, authors = false, dark = Nero.theme.isDark()) {
    const [red, green, blue] = dark ? onDark(parse(hex), authors) : legible(parse(hex), LIGHT, BLACK, ON_LIGHT);
    return `rgb(${red},${green},${blue})`;
  }

  return { ink, drawn };
})();
