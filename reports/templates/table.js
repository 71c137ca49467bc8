// Sorting, filtering and row details of the case tables. Text from records is inserted as textContent only.
(() => {
  "use strict";
  const details = JSON.parse(document.getElementById("details").textContent);

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

  function detailRow(detail, width) {
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
    if (detail.reason) cell.append(element("p", detail.reason));
    for (const found of detail.diagnosis ?? []) cell.append(...diagnosis(found));
    if (detail.traceback) cell.append(element("pre", detail.traceback, "traceback"));
    const list = element("dl");
    for (const [name, text, exact] of detail.fields) {
      const pair = element("div");
      const value = element("dd", text);
      if (exact) value.title = exact;
      pair.append(element("dt", name), value);
      list.append(pair);
    }
    cell.append(list);
    if (detail.errors.length) {
      const table = element("table", undefined, "errors");
      for (const line of [["object", "error", "tolerance", "by rows", "tolerance by rows"], ...detail.errors]) {
        const tr = element("tr");
        tr.append(...line.map((text, i) => element(i === 0 || table.rows.length === 0 ? "th" : "td", text)));
        table.append(tr);
      }
      cell.append(table);
    }
    if (detail.samples.length > 1) {
      const thinned = detail.samples.length < detail.count ? `, ${detail.samples.length} drawn` : "";
      cell.append(element("small", `${detail.count} samples in the order taken${thinned}`), sparkline(detail.samples));
    }
    row.append(outer);
    return row;
  }

  function setUp(box) {
    const table = box.querySelector("table");
    const body = table.tBodies[0];
    const headers = [...table.tHead.rows[0].cells];
    const rows = [...body.rows];
    const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const opened = new Map();
    const search = box.querySelector("input");
    const selects = [...box.querySelectorAll("select")];
    const reset = box.querySelector(".reset");

    function toggle(row) {
      const button = row.querySelector("button");
      const open = opened.get(row);
      if (open) {
        open.remove();
        opened.delete(row);
      } else {
        const made = detailRow(details[row.dataset.place], headers.length);
        opened.set(row, made);
        row.after(made);
      }
      button.setAttribute("aria-expanded", String(!open));
    }

    function filter() {
      const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const fits = selects.every((s) => !s.value || row.dataset[s.dataset.axis] === s.value)
          && wanted.every((word) => words.get(row).includes(word));
        row.hidden = !fits;
        if (opened.has(row)) opened.get(row).hidden = !fits;
        shown += fits;
      }
      box.querySelector("output").textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
      reset.disabled = !search.value && selects.every((s) => !s.value);
    }

    function sort(column) {
      const header = headers[column];
      const descending = header.getAttribute("aria-sort") === "ascending";
      const numeric = header.classList.contains("number");
      for (const other of headers) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[column];
        if (numeric) return cell?.dataset.v === undefined ? null : Number(cell.dataset.v);
        return cell?.textContent ?? "";
      };
      const keyed = rows.map((row) => [value(row), row]);
      keyed.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null); // missing values stay last
        const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
        return descending ? -order : order;
      });
      table.classList.remove("grouped");
      for (const [, row] of keyed) {
        body.append(row);
        if (opened.has(row)) body.append(opened.get(row));
      }
    }

    headers.forEach((header, column) => {
      if (header.hasAttribute("aria-sort")) header.querySelector("button").addEventListener("click", () => sort(column));
    });
    body.addEventListener("click", (event) => {
      const button = event.target.closest("td.open button");
      if (button) toggle(button.closest("tr"));
    });
    search.addEventListener("input", filter);
    selects.forEach((select) => select.addEventListener("change", filter));
    reset.addEventListener("click", () => {
      search.value = "";
      selects.forEach((select) => { select.value = ""; });
      filter();
    });
    box.choose = (choices) => { // a matrix cell was pressed
      search.value = "";
      for (const select of selects) select.value = choices[select.dataset.axis] ?? "";
      filter();
      box.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    };
  }

  for (const box of document.querySelectorAll("[data-table]")) setUp(box);
  for (const button of document.querySelectorAll(".run .copy")) {
    button.addEventListener("click", () => copy(button, button.previousElementSibling.textContent));
  }
  for (const block of document.querySelectorAll(".matrices")) {
    block.addEventListener("click", (event) => {
      const button = event.target.closest("td button");
      if (button) block.closest(".suite").querySelector("[data-table]").choose(button.dataset);
    });
    block.querySelector("select")?.addEventListener("change", (event) => {
      block.querySelectorAll(".scroll").forEach((view, i) => { view.hidden = String(i) !== event.target.value; });
    });
  }
})();
