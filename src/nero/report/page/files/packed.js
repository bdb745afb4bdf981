// What the page holds compressed: base64 of gzip in script elements, unpacked once, when it is first asked for.
Nero.packed = (() => {
  "use strict";

  function bytes(base64) {
    const text = atob(base64);
    const unpacked = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) unpacked[place] = text.charCodeAt(place);
    return unpacked;
  }

  async function text(id) {
    const stream = new Blob([bytes(document.getElementById(id).textContent.trim())]).stream();
    return new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
  }

  function once(make) {
    let promise = null;
    return () => (promise ??= make());
  }

  const runs = once(async () => {
    const data = JSON.parse(await text("runs-data"));
    return { ...data, byId: new Map(data.runs.map((run) => [run.id, run])) };
  });

  const pictures = once(async () => JSON.parse(await text("pictures-data")));

  const plotly = once(async () => {
    const script = document.createElement("script");
    script.textContent = await text("plotly-data");
    document.head.append(script);
    return window.Plotly;
  });

  return { runs, pictures, plotly };
})();
