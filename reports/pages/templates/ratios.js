// Charts of a comparison: the ratios in order, with intervals. Plotly reads markup, so text is escaped.
(async () => {
  "use strict";
  const [charts] = await Promise.all([page.data("ratios"), page.plotly()]);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const looks = { // by verdict: colour and mark, in the order of the legend
    slower: ["--bad", "triangle-up"], ambiguous: ["--warn", "diamond"], faster: ["--good", "triangle-down"],
    same: ["--none", "circle"],
  };

  function traces(chart) {
    const dense = chart.points.length > 150;
    return Object.entries(looks).map(([verdict, [colour, symbol]]) => {
      const points = chart.points.map((point, place) => ({ ...point, place: place + 1 }))
        .filter((point) => point.verdict === verdict);
      return {
        type: "scatter", mode: "markers", name: `${verdict} (${points.length})`, visible: points.length > 0,
        x: points.map((point) => point.place), y: points.map((point) => point.y),
        error_y: {
          type: "data", symmetric: false, thickness: 1, width: 0, color: css(colour) + (dense ? "50" : ""),
          array: points.map((point) => point.high - point.y), arrayminus: points.map((point) => point.y - point.low),
        },
        marker: { color: css(colour), symbol, size: dense ? 4 : 7 },
        text: points.map((point) => escape(point.text).replace(/\n/g, "<br>")),
        hovertemplate: "%{text}<extra></extra>",
      };
    });
  }

  function range(chart) { // all points and the band; an interval may reach beyond
    const most = 1 + chart.threshold;
    const highest = Math.max(most, ...chart.points.map((point) => point.y));
    const lowest = Math.min(1 / most, ...chart.points.map((point) => point.y));
    const widest = chart.points.map((point) => point.high / point.y).sort((a, b) => a - b);
    const margin = Math.min(widest[Math.floor(0.9 * (widest.length - 1))], highest / lowest) * 1.03;
    return [Math.log10(lowest / margin), Math.log10(highest * margin)];
  }

  function ticks([low, high]) { // as ratios, in steps that suit the range
    const span = 10 ** (high - low);
    const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1].find((each) => (span - 1) / each <= 12);
    const found = [];
    if (step) {
      for (let value = Math.ceil(10 ** low / step) * step; value <= 10 ** high; value += step) {
        found.push(Number(value.toPrecision(6)));
      }
    } else {
      for (let power = Math.floor(low); power <= high; power += 1) {
        for (const digit of [1, 2, 5]) found.push(Number(`${digit}e${power}`));
      }
    }
    return found;
  }

  function layout(chart) {
    const grid = { gridcolor: css("--rule"), linecolor: css("--rule"), zeroline: false, automargin: true };
    const most = 1 + chart.threshold;
    const across = { type: "rect", xref: "paper", x0: 0, x1: 1, yref: "y", layer: "below" };
    const reach = range(chart);
    return {
      xaxis: { ...grid, title: { text: "cases in order of their ratio", font: { size: 11 } }, showgrid: false },
      yaxis: { ...grid, type: "log", range: reach, tickvals: ticks(reach), title: { text: "new / base", font: { size: 11 } } },
      shapes: [
        { ...across, y0: 1 / most, y1: most, fillcolor: css("--accent"), opacity: 0.1, line: { width: 0 } },
        { ...across, type: "line", y0: 1, y1: 1, line: { color: css("--soft"), width: 1, dash: "dot" } },
      ],
      margin: { l: 56, r: 10, t: 8, b: 40 }, hovermode: "closest",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--accent") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 11, color: css("--soft") },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--rule"), font: { color: css("--ink"), size: 12 }, align: "left" },
    };
  }

  function draw() {
    for (const plot of document.querySelectorAll("[data-ratios]")) {
      const chart = charts[plot.dataset.ratios];
      Plotly.react(plot, traces(chart), layout(chart),
        { displaylogo: false, responsive: true, displayModeBar: "hover",
          modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] });
    }
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
