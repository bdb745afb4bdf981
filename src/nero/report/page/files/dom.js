// Elements from names, attributes and children. Text goes in as text nodes only: no data is ever parsed as markup.
Nero.dom = (() => {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== null && value !== undefined && value !== false) {
        element.setAttribute(name, value === true ? "" : value);
      }
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  function html(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }

  // A setting such as η = 0.01 or n = 1 of 3 stays on one line.
  function unbroken(text) {
    return text.replaceAll(/ (=|of) /g, "\u00a0$1\u00a0");
  }

  function runLink(id, text) {
    return html("a", { class: "run", href: `#run=${encodeURIComponent(id)}` }, text);
  }

  return { html, svg, unbroken, runLink };
})();
