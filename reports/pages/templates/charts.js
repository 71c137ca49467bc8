// Charts with one plot per panel, drawn when it comes into view. Plotly reads markup, so names are escaped.
(async () => {
  "use strict";
  if (!document.querySelector("[data-chart]")) return;
  const [charts, looks] = await Promise.all([page.data("charts"), page.data("looks")]);
  const hiddenLines = new Set();
  const redraws = [];
  const inOrder = (names) => {
    const known = Object.keys(looks).filter((name) => names.includes(name));
    return [...known, ...names.filter((name) => !known.includes(name)).sort()];
  };
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (n) => n >= 2 ** 20 && n % 2 ** 20 === 0 ? `${n / 2 ** 20}M` : n >= 1024 && n % 1024 === 0 ? `${n / 1024}K` : String(n);

  function select(label, values, all) {
    const wrapper = document.createElement("label");
    const list = document.createElement("select");
    if (all) list.add(new Option(all, ""));
    values.forEach((value) => list.add(new Option(value, value)));
    wrapper.append(`${label} `, list);
    return [wrapper, list];
  }

  function look(name, order) {
    return looks[name] ?? { colour: Object.values(looks)[order % Object.keys(looks).length].colour, mark: "circle" };
  }

  const standings = ["competes", "beside", "wrong"]; // lines that do not compete come last
  const rank = (line) => standings.indexOf(line.standing);
  const label = (line) => line.mark ? `${line.series} (${line.mark})` : line.series;

  function ticks(xs, logarithmic) {
    const values = [...new Set(xs)].sort((a, b) => a - b);
    if (values.length > 6 && logarithmic && values[0] > 0) { // among many values, powers of two are read best
      const [first, last] = [Math.ceil(Math.log2(values[0])), Math.floor(Math.log2(values.at(-1)))];
      const apart = Math.max(1, Math.ceil((last - first) / 6));
      const powers = Array.from({ length: Math.max(0, last - first) + 1 }, (_, i) => 2 ** (first + i));
      if (first < last) return powers.filter((_, i) => i % apart === 0);
    }
    const step = Math.ceil(values.length / 6);
    return values.filter((_, i) => i % step === 0);
  }

  function quantity(value, chart) {
    if (chart.ticks === "~%") return `${Number((100 * value).toPrecision(2))}%`;
    if (chart.ticks !== "~s") return value.toExponential(Number(value.toExponential(0)) === value ? 0 : 1);
    const power = Math.floor(Math.log10(value) / 3 + 1e-9);
    const prefix = { "-4": "p", "-3": "n", "-2": "µ", "-1": "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P" }[power];
    return prefix === undefined ? value.toExponential(0) : `${Number((value / 1000 ** power).toPrecision(2))}${chart.unit && " "}${prefix}${chart.unit}`;
  }

  function logTicks(low, high) { // whole decades, or 1-2-5 steps if there are few
    const steps = high / low > 60 ? [1] : [1, 2, 5];
    const found = [];
    for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const step of steps) found.push(Number(`${step}e${power}`));
    }
    // round values may all lie outside a narrow range, or beside a single value: its own ends are then the ticks
    if (found.filter((value) => value >= low && value <= high).length < 2) return [...new Set([low, high])];
    const inside = found.filter((value) => value >= low / 3 && value <= high * 3);
    return inside.length > 9 ? inside.filter((_, i) => i % 2 === 0) : inside;
  }

  function traces(chart, lines, single) {
    const rests = [...new Set(lines.map((line) => line.rest))];
    const names = inOrder([...new Set(chart.panels.flatMap((p) => p.lines.map((line) => line.series)))]);
    const several = new Set(lines.flatMap((line) => line.x)).size > 1;
    return lines.map((line) => {
      if (line.reference) {
        return {
          type: "scatter", mode: "lines", x: line.x, y: line.y, line: { color: css("--soft"), width: 1.2, dash: line.reference % 2 ? "dot" : "dash" },
          text: line.text.map(escape), hovertemplate: "%{text}<extra></extra>",
        };
      }
      const { colour, mark } = look(line.series, names.indexOf(line.series));
      const spread = { type: "data", symmetric: false, array: line.above, arrayminus: line.below, thickness: 1.2, width: 3, color: colour };
      const along = single ? line.x.map((x) => escape(several ? `${label(line)}, ${chart.x} ${short(x)}` : label(line))) : line.x;
      return {
        type: "scatter", mode: single ? "markers" : "lines+markers",
        x: single ? line.y : along, y: single ? along : line.y,
        [single ? "error_x" : "error_y"]: line.above.length ? spread : undefined,
        line: { color: colour, width: 1.8, dash: dashes[rests.indexOf(line.rest) % dashes.length] },
        marker: { color: colour, symbol: line.standing === "competes" ? mark : `${mark}-open`, size: single ? 9 : 6 },
        opacity: [1, 0.8, 0.4][rank(line)],
        text: line.text.map((text) => escape(line.tail ? `${text}\n${line.tail}` : text).replace(/\n/g, "<br>")),
        hovertemplate: "%{text}<extra></extra>",
      };
    });
  }

  function layout(chart, lines, single, large) {
    const grid = { gridcolor: css("--rule"), linecolor: css("--rule"), zeroline: false, automargin: true, fixedrange: !large };
    const value = { ...grid, type: chart.log ? "log" : "linear", nticks: large ? 10 : 5 };
    const ys = lines.flatMap((line) => line.y);
    if (chart.log) {
      value.tickvals = logTicks(Math.min(...ys), Math.max(...ys));
      value.ticktext = value.tickvals.map((y) => quantity(y, chart));
    } else {
      Object.assign(value, { tickformat: chart.ticks, ticksuffix: chart.unit });
    }
    const xs = lines.flatMap((line) => line.x);
    const numeric = xs.every((x) => typeof x === "number");
    const marks = chart.scatter ? logTicks(Math.min(...xs) / 1.2, Math.max(...xs) * 1.2) : ticks(xs, chart.log_x);
    const across = numeric
      ? { ...grid, type: chart.log_x && Math.min(...xs) > 0 ? "log" : "linear", tickvals: marks, ticktext: marks.map((x) => chart.scatter ? `${Number(x.toPrecision(2))}` : short(x)) }
      : { ...grid, type: "category" };
    const at = single && numeric && new Set(xs).size === 1 ? `${escape(chart.y)} at ${escape(chart.x)} ${short(xs[0])}` : escape(chart.y);
    const title = (text) => ({ text, font: { size: 11 }, standoff: 6 });
    return {
      xaxis: single ? { ...value, title: title(at) } : { ...across, title: title(escape(chart.x)) },
      yaxis: single ? { ...grid, type: "category", autorange: "reversed" } : { ...value, title: title(escape(chart.y)) },
      margin: { l: 48, r: 10, t: 8, b: 36 }, showlegend: false, hovermode: "closest",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--accent") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 11, color: css("--soft") },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--rule"), font: { color: css("--ink"), size: 12 }, align: "left" },
    };
  }

  function setUp(box) {
    const chart = charts[box.dataset.chart];
    const tools = box.querySelector(".tools");
    const area = box.querySelector(".panels");
    const [facetLabel, facet] = select(chart.facet, chart.panels.map((panel) => panel.name), "all");
    const pickers = chart.axes.map((axis) => [axis.name, ...select(axis.label, axis.values)]);
    for (const [, label] of pickers) tools.append(label);
    if (chart.panels.length > 1) tools.append(facetLabel);
    const visible = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        visible.unobserve(target);
        page.plotly().then(() => { if (target.isConnected) target.draw(); });
      }
    }, { rootMargin: "300px" });

    function draw(plot, panel, large) {
      const lines = panel.lines.filter((line) => !hiddenLines.has(line.series)
        && pickers.every(([name, , list]) => line.axes[name] === list.value));
      if (!lines.length) {
        const nothing = document.createElement("p");
        nothing.className = "nothing";
        nothing.textContent = "no ok case for this choice";
        plot.replaceChildren(nothing);
        return;
      }
      const single = !chart.scatter && lines.every((line) => line.x.length === 1);
      if (single) lines.sort((a, b) => rank(a) - rank(b) || (chart.most ? b.y[0] - a.y[0] : a.y[0] - b.y[0]));
      const drawn = single ? lines.filter((line) => !line.reference) : lines;
      plot.replaceChildren();
      Plotly.newPlot(plot, traces(chart, drawn, single), layout(chart, drawn, single, large),
        { displaylogo: false, responsive: true, displayModeBar: large ? "hover" : false,
          modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] });
    }

    function redraw() {
      area.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.purge(plot));
      area.replaceChildren();
      const panels = chart.panels.filter((panel) => !facet.value || panel.name === facet.value);
      const large = panels.length === 1;
      area.classList.toggle("one", large);
      for (const panel of panels) {
        const figure = document.createElement("div");
        const heading = document.createElement("h4");
        const enlarge = document.createElement("button");
        const plot = document.createElement("div");
        figure.className = "panel";
        plot.className = "plot";
        enlarge.type = "button";
        enlarge.textContent = panel.name;
        enlarge.title = large ? "show all" : "enlarge";
        enlarge.addEventListener("click", () => { facet.value = large ? "" : panel.name; redraw(); });
        heading.append(enlarge);
        figure.append(heading, plot);
        area.append(figure);
        plot.draw = () => draw(plot, panel, large);
        visible.observe(plot);
      }
    }

    const names = inOrder([...new Set(chart.panels.flatMap((panel) => panel.lines.map((line) => line.series)))]);
    names.forEach((name, order) => {
      const button = document.createElement("button");
      button.type = "button";
      const marks = [...new Set(chart.panels.flatMap((p) => p.lines.filter((l) => l.series === name && l.mark).map((l) => l.mark)))];
      button.textContent = marks.length ? `${name} (${marks.slice(0, 2).join("; ")}${marks.length > 2 ? "; …" : ""})` : name;
      const faint = chart.panels.some((panel) => panel.lines.some((line) => line.series === name && line.reference));
      button.style.setProperty("--c", faint ? "var(--soft)" : look(name, order).colour);
      button.setAttribute("aria-pressed", String(!hiddenLines.has(name)));
      button.dataset.line = name;
      button.addEventListener("click", () => {
        if (!hiddenLines.delete(name)) hiddenLines.add(name);
        for (const other of document.querySelectorAll(".lines button")) {
          other.setAttribute("aria-pressed", String(!hiddenLines.has(other.dataset.line)));
        }
        redraws.forEach((again) => again());
      });
      box.querySelector(".lines").append(button);
    });
    facet.addEventListener("change", redraw);
    pickers.forEach(([, , list]) => list.addEventListener("change", redraw));
    redraws.push(redraw);
    redraw();
  }

  for (const box of document.querySelectorAll("[data-chart]")) setUp(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((again) => again()));
  addEventListener("beforeprint", () => {
    if (window.Plotly) document.querySelectorAll(".plot:empty").forEach((plot) => plot.draw?.());
  });
  (window.requestIdleCallback ?? setTimeout)(page.plotly); // so that charts appear at once, also in print
})();
