// The tables of cases: rows, sorting, filters, details. Text from records is inserted as textContent only.
(() => {
  "use strict";
  const PIECE = 200; // rows that are added at once

  function element(name, text, className) {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  function copyButton(text) {
    const button = element("button", "copy", "copy");
    button.type = "button";
    button.addEventListener("click", () => copy(button, text));
    return button;
  }

  async function copy(button, text) {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "press Ctrl-C"; // a page from a file may not reach the clipboard
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
    }
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  }

  function sparkline(samples) {
    const [low, high] = samples.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS(svg.namespaceURI, "path");
    const points = samples.map((v, i) => `${100 * i / Math.max(1, samples.length - 1)},${26 - 24 * (v - low) / (high - low || 1)}`);
    path.setAttribute("d", "M" + points.join("L"));
    svg.setAttribute("class", "samples");
    svg.setAttribute("viewBox", "0 0 100 28");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", "samples in the order taken");
    svg.append(path);
    return svg;
  }

  // The error over time on a logarithmic scale, with its tolerance as a dashed line; gaps are not finite.
  function envelope(found) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const logs = found.envelope.map((v) => (v === null ? null : Math.log10(Math.max(v, 1e-18))));
    const limit = found.tolerance === null ? null : Math.log10(found.tolerance);
    const present = [...logs, limit].filter((v) => v !== null);
    if (!present.length) present.push(0);
    const high = Math.max(...present), low = Math.max(Math.min(...present) - 0.5, high - 12);
    const height = (v) => 34 - 30 * (Math.max(v, low) - low) / (high - low || 1);
    const width = 200 / found.envelope.length;
    const shape = (name, attributes) => {
      const node = document.createElementNS(svg.namespaceURI, name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      svg.append(node);
    };
    logs.forEach((v, i) => {
      const top = v === null ? 0 : height(v);
      const beyond = v === null ? "broken" : limit !== null && v > limit ? "beyond" : "within";
      shape("rect", { x: i * width, y: top, width: Math.max(width - 0.4, 0.4), height: 36 - top, class: beyond });
    });
    if (limit !== null) shape("line", { x1: 0, x2: 200, y1: height(limit), y2: height(limit) });
    svg.setAttribute("class", "envelope");
    svg.setAttribute("viewBox", "0 0 200 36");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `relative error of ${found.object} over time`);
    return svg;
  }

  function diagnosis(found) {
    const line = element("p", undefined, "finding");
    line.append(element("b", found.object), `: ${found.text}`);
    if (found.envelope.length < 2) return [line];
    const steps = found.T ? ` over ${found.T} steps` : " over time";
    const words = `error${steps}, logarithmic; dashed: the tolerance ${found.tolerance ?? ""}`;
    return [line, envelope(found), element("small", words)];
  }

  function detailRow(details, place, reason, width) {
    const detail = details.rows[place];
    const row = element("tr", undefined, "details");
    const outer = element("td");
    const cell = element("div", undefined, "inner");
    outer.colSpan = width;
    outer.append(cell);
    if (detail.command) {
      const line = element("div", undefined, "cmd");
      line.append(element("span", "repeat this case:"), element("code", detail.command), copyButton(detail.command));
      cell.append(line);
    }
    if (reason) cell.append(element("p", reason));
    for (const found of detail.diagnosis ?? []) cell.append(...diagnosis(found));
    if (detail.traceback) cell.append(element("pre", detail.traceback, "traceback"));
    const list = element("dl");
    for (const { name, same, rows } of details.fields) {
      const found = same ?? rows[place];
      if (found === null) continue;
      const [text, exact] = Array.isArray(found) ? found : [found];
      const pair = element("div");
      const value = element("dd", text);
      if (exact) value.title = exact;
      pair.append(element("dt", name), value);
      list.append(pair);
    }
    cell.append(list);
    if (detail.errors) {
      const table = element("table", undefined, "errors");
      for (const line of [["object", "error", "tolerance", "by rows", "tolerance by rows"], ...detail.errors]) {
        const tr = element("tr");
        tr.append(...line.map((text, i) => element(i === 0 || table.rows.length === 0 ? "th" : "td", text)));
        table.append(tr);
      }
      cell.append(table);
    }
    if (detail.samples?.length > 1) {
      const thinned = detail.samples.length < detail.count ? `, ${detail.samples.length} drawn` : "";
      cell.append(element("small", `${detail.count} samples in the order taken${thinned}`), sparkline(detail.samples));
    }
    row.append(outer);
    return row;
  }

  function badge(text, title, className) {
    const node = element("b", text, className);
    node.title = title;
    return node;
  }

  // What each row of a table shows. data: as `case_tables.table` makes it.
  function reader(data) {
    const shown = data.columns.filter((column) => column.shown);
    const numbers = shown.filter((column) => column.number);
    const groups = new Set(data.groups);
    const reason = (place) => data.reasons[place] ?? "";
    const isEmpty = (place) => numbers.length > 0 && numbers.every((column) => column.cells[place] === null);

    function badges(place) {
      const found = [];
      if (place in data.best) {
        const tied = data.best[place];
        found.push(badge(data.word + (tied ? ", tied" : ""), tied ? "shares the first place: the intervals overlap" : "the first of the backends that are right and exact", "best"));
      }
      if (place in data.marks) found.push(badge(data.marks[place], reason(place), "mark"));
      return found;
    }

    function reasonCell(place) {
      const td = element("td", reason(place), "reason");
      td.title = reason(place);
      return td;
    }

    function numberCell(cell) {
      const [text, , note, tilde] = cell ?? ["–"];
      const td = element("td", undefined, "number");
      if (tilde) {
        const mark = element("span", "~", "tilde");
        mark.title = "the interval did not settle in the time allowed";
        td.append(mark);
      }
      td.append(text);
      if (note) td.append(element("small", note));
      return td;
    }

    function cell(column, place) {
      if (column.number) return numberCell(column.cells[place]);
      if (column.name === "reason") return reasonCell(place);
      const text = column.cells[place];
      if (column.name === "status") return element("td", text, `status s-${text}`);
      if (column.name === "verdict") return element("td", text, `status v-${text}`);
      const td = element("td", text);
      if (column.name === "backend") {
        td.className = "backend";
        td.append(...badges(place));
      }
      return td;
    }

    function row(place) {
      const tr = element("tr", undefined, [groups.has(place) && "first", place in data.best && "fastest"].filter(Boolean).join(" "));
      const open = element("td", undefined, "open");
      const button = element("button", "›");
      button.type = "button";
      button.setAttribute("aria-label", "details");
      button.setAttribute("aria-expanded", "false");
      open.append(button);
      const named = isEmpty(place) ? shown.slice(0, shown.indexOf(numbers[0])) : shown;
      tr.append(open, ...named.map((column) => cell(column, place)));
      if (named !== shown) {
        const last = reasonCell(place);
        last.colSpan = shown.length - named.length;
        tr.append(last);
      }
      return tr;
    }

    return {
      row, shown, reason,
      count: data.columns[0].cells.length,
      cells: new Map(data.columns.map((column) => [column.name, column.cells])),
      words: (place) => [...shown.map((column) => column.number ? [column.cells[place]?.[0], column.cells[place]?.[2]].join(" ") : column.cells[place]),
        place in data.best ? data.word : "", data.marks[place], reason(place)].join(" ").toLowerCase(),
      key: (column) => column.number ? (place) => column.cells[place]?.[1] ?? null
        : column.name === "reason" ? reason : (place) => column.cells[place],
    };
  }

  async function setUp(box) {
    const found = reader(await page.data(box.dataset.cases));
    const table = box.querySelector("table");
    const body = table.tBodies[0];
    const scroll = box.querySelector(".scroll");
    const headers = [...table.tHead.rows[0].cells];
    const search = box.querySelector("input");
    const selects = [...box.querySelectorAll("select")];
    const reset = box.querySelector(".reset");
    const opened = new Map(); // the rows of details by the places of their cases
    const places = Array.from({ length: found.count }, (_, place) => place);
    let order = places; // all rows as sorted
    let fitting = places; // those that fit the filters
    let drawn = 0;
    let words;

    function draw(most) { // until so many rows are in the table
      for (; drawn < Math.min(most, fitting.length); drawn += 1) {
        const place = fitting[drawn];
        const row = found.row(place);
        row.dataset.place = place;
        body.append(row);
        if (opened.has(place)) {
          row.querySelector("button").setAttribute("aria-expanded", "true");
          body.append(opened.get(place));
        }
      }
    }

    function redraw() {
      body.replaceChildren();
      scroll.scrollTop = 0;
      drawn = 0;
      draw(PIECE);
    }

    async function toggle(row) {
      const place = Number(row.dataset.place);
      const details = await page.data(box.dataset.details);
      if (opened.has(place)) {
        opened.get(place).remove();
        opened.delete(place);
      } else {
        opened.set(place, detailRow(details, place, found.reason(place), headers.length));
        row.after(opened.get(place));
      }
      row.querySelector("button").setAttribute("aria-expanded", String(opened.has(place)));
    }

    function filter() {
      const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const chosen = selects.filter((select) => select.value).map((select) => [found.cells.get(select.dataset.axis), select.value]);
      if (wanted.length) words ??= places.map(found.words);
      fitting = order.filter((place) => chosen.every(([cells, value]) => cells[place] === value)
        && wanted.every((word) => words[place].includes(word)));
      box.querySelector("output").textContent = fitting.length === found.count ? `${found.count} rows` : `${fitting.length} of ${found.count} rows`;
      reset.disabled = !search.value && selects.every((select) => !select.value);
      redraw();
    }

    function sort(header, column) {
      const descending = header.getAttribute("aria-sort") === "ascending";
      for (const other of headers) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const collator = new Intl.Collator("en", { numeric: true });
      const value = found.key(column);
      const keyed = order.map((place) => [value(place), place]);
      keyed.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null); // missing values stay last
        const difference = column.number ? a - b : collator.compare(a, b);
        return descending ? -difference : difference;
      });
      order = keyed.map(([, place]) => place);
      table.classList.remove("grouped");
      filter();
    }

    found.shown.forEach((column, i) => {
      const header = headers[i + 1]; // the first one is that of the buttons
      header.querySelector("button").addEventListener("click", () => sort(header, column));
    });
    body.addEventListener("click", (event) => {
      const button = event.target.closest("td.open button");
      if (button) toggle(button.closest("tr"));
    });
    scroll.addEventListener("scroll", () => {
      if (scroll.scrollTop + 2 * scroll.clientHeight > scroll.scrollHeight) draw(drawn + PIECE);
    });
    addEventListener("beforeprint", () => draw(Infinity));
    search.addEventListener("input", filter);
    selects.forEach((select) => select.addEventListener("change", filter));
    reset.addEventListener("click", () => {
      search.value = "";
      selects.forEach((select) => { select.value = ""; });
      filter();
    });
    draw(PIECE);
    return (choices) => { // a matrix cell was pressed
      search.value = "";
      for (const select of selects) select.value = choices[select.dataset.axis] ?? "";
      filter();
      box.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    };
  }

  const choosing = new Map([...document.querySelectorAll("[data-cases]")].map((box) => [box, setUp(box)]));
  for (const button of document.querySelectorAll(".run .copy, #conclusion .copy")) {
    button.addEventListener("click", () => copy(button, button.previousElementSibling.textContent));
  }
  for (const block of document.querySelectorAll(".matrices")) {
    block.addEventListener("click", (event) => {
      const button = event.target.closest("td button");
      if (button) choosing.get(block.closest(".suite").querySelector("[data-cases]")).then((choose) => choose(button.dataset));
    });
    block.querySelector("select")?.addEventListener("change", (event) => {
      block.querySelectorAll(".scroll").forEach((view, i) => { view.hidden = String(i) !== event.target.value; });
    });
  }
})();
