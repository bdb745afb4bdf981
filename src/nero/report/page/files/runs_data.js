// All runs, unpacked once from the base64 of a gzipped JSON.
Nero.runsData = (() => {
  "use strict";

  let promise = null;
  let byId = null;

  function bytes(base64) {
    const text = atob(base64);
    const unpacked = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) unpacked[place] = text.charCodeAt(place);
    return unpacked;
  }

  async function unpack() {
    const packed = document.getElementById("runs-data").textContent.trim();
    const stream = new Blob([bytes(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const data = JSON.parse(await new Response(stream).text());
    byId = new Map(data.runs.map((run) => [run.id, run]));
    return data;
  }

  function load() {
    promise ??= unpack();
    return promise;
  }

  async function find(id) {
    const data = await load();
    return { run: byId.get(id), store: data.store };
  }

  return { load, find };
})();
