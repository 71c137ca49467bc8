// Reads what the page holds compressed: gzip as base64, in script elements that the browser does not run.
const page = (() => {
  "use strict";
  const found = new Map();

  function fail(message) {
    const place = document.getElementById("failure");
    place.textContent = message;
    place.hidden = false;
  }

  async function read(id) {
    const letters = atob(document.getElementById(id).textContent);
    const bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i += 1) bytes[i] = letters.charCodeAt(i);
    const stream = new DecompressionStream("gzip");
    const writer = stream.writable.getWriter();
    const written = Promise.all([writer.write(bytes), writer.close()]);
    const [text] = await Promise.all([new Response(stream.readable).text(), written]);
    return text;
  }

  function once(id, use) {
    if (!found.has(id)) {
      if (typeof DecompressionStream === "undefined") {
        fail("This browser cannot unpack the tables of cases and the charts, since it has no DecompressionStream. Chrome and Edge have it from version 80 on, Firefox from 113, Safari from 16.4.");
        found.set(id, new Promise(() => {}));
      } else {
        const reading = read(id).then(use);
        reading.catch((error) => fail(`The page is damaged: its part “${id}” cannot be read (${error}). Make the page again.`));
        found.set(id, reading);
      }
    }
    return found.get(id);
  }

  return {
    data: (id) => once(id, JSON.parse), // a promise of the value
    plotly: () => once("plotly", (text) => { // a promise of the library, which is run when it is first needed
      const script = document.createElement("script");
      script.textContent = text;
      document.head.append(script);
      return Plotly;
    }),
  };
})();
