// Charts of a history: one per case, drawn when it comes into view. Plotly reads markup, so text is escaped.
(() => {
  "use strict";
  const ready = Promise.all([page.data("courses"), page.plotly()]);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const over = document.getElementById("over");
  const bar = document.getElementById("filters");
  const search = bar.querySelector("input");
  const selects = [...bar.querySelectorAll("select[data-axis]")];
  const reset = bar.querySelector(".reset");
  const items = [...document.querySelectorAll(".item")];
  const words = new Map(items.map((item) => [item, item.textContent.toLowerCase()]));
  const drawn = new Set();

  const places = (course) => (over.value === "date" ? course.dates : course.dates.map((_, i) => i + 1));
  const colour = (step) => css(step.slower ? "--bad" : "--good");

  function traces(course) {
    return [{
      type: "scatter", mode: "lines+markers", x: places(course), y: course.y,
      line: { color: css("--accent"), width: 1 }, marker: { color: css("--accent"), size: 5 },
      error_y: {
        type: "data", symmetric: false, thickness: 1, width: 0, color: css("--accent"),
        array: course.above, arrayminus: course.below, visible: course.above.length > 0,
      },
      text: course.text.map((text) => escape(text).replace(/\n/g, "<br>")),
      hovertemplate: "%{text}<extra></extra>", showlegend: false,
    }];
  }

  function layout(course) {
    const grid = { gridcolor: css("--rule"), linecolor: css("--rule"), zeroline: false, automargin: true };
    const x = places(course);
    const low = Math.min(...course.y), high = Math.max(...course.y);
    const margin = Math.max(0.1 * (high - low), 0.05 * high);
    return {
      xaxis: { ...grid, showgrid: false, type: over.value === "date" ? "date" : "linear" },
      yaxis: { ...grid, range: [low - margin, high + 2 * margin], tickformat: ".3~s", ticksuffix: course.unit, title: { text: escape(course.axis), font: { size: 11 } } },
      shapes: course.steps.map((step) => ({
        type: "line", xref: "x", yref: "paper", x0: x[step.place], x1: x[step.place], y0: 0, y1: 1,
        line: { color: colour(step), width: 1.5, dash: "dash" },
      })),
      annotations: course.steps.map((step) => ({
        x: x[step.place], y: 0, xref: "x", yref: "paper", yanchor: "bottom", showarrow: false,
        xanchor: step.place > course.y.length / 2 ? "right" : "left",
        text: escape(step.text), font: { size: 10, color: colour(step) },
      })),
      margin: { l: 52, r: 8, t: 6, b: 28 }, hovermode: "closest",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--accent") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 11, color: css("--soft") },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--rule"), font: { color: css("--ink"), size: 12 }, align: "left" },
    };
  }

  async function draw(plot) {
    drawn.add(plot);
    const [courses] = await ready;
    const course = courses[plot.dataset.course];
    Plotly.react(plot, traces(course), layout(course),
      { displaylogo: false, responsive: true, displayModeBar: "hover",
        modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] });
  }

  function filter() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, all = 0;
    for (const item of items) {
      const fits = selects.every((s) => !s.value || item.dataset[s.dataset.axis] === s.value)
        && wanted.every((word) => words.get(item).includes(word));
      item.hidden = !fits;
      if ("case" in item.dataset) {
        all += 1;
        shown += fits;
      }
    }
    bar.querySelector("output").textContent = shown === all ? `${all} cases` : `${shown} of ${all} cases`;
    reset.disabled = !search.value && selects.every((s) => !s.value);
  }

  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
    }
  }, { rootMargin: "400px" });
  for (const plot of document.querySelectorAll("[data-course]")) watch.observe(plot);

  const again = () => drawn.forEach(draw);
  over.addEventListener("change", again);
  search.addEventListener("input", filter);
  selects.forEach((select) => select.addEventListener("change", filter));
  reset.addEventListener("click", () => {
    search.value = "";
    selects.forEach((select) => { select.value = ""; });
    filter();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
})();
