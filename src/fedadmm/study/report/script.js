"use strict";
// Draws every panel from the JSON in the page; nothing is fetched from anywhere.
(() => {
  let data, styles;
  let methods = [];
  const axis = {};
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();
  let theme = null; // null follows the system

  // What the page holds now; an axis that was chosen stays chosen.
  function read() {
    data = JSON.parse(document.getElementById("data").textContent);
    styles = new Map(data.legend.map((entry) => [entry.label, entry]));
    for (const s of data.sections) axis[s.name] = s.axes.find((a) => a.name === axis[s.name]?.name) ?? s.axes[0];
  }

  const dark = () => root.dataset.theme === "dark";
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (label) => (dark() ? styles.get(label).dark : styles.get(label).light);
  const faded = (hex, alpha) => {
    const channels = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return `rgba(${channels.join(",")},${alpha})`;
  };
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // A few markers a line, each method's at other places, so that lines on top of each other show.
  function markerTrace(common, line, shade) {
    const every = Math.max(1, Math.ceil(line.y.length / 8));
    const offset = Math.floor([...styles.keys()].indexOf(line.label) * every / styles.size);
    const some = (values) => values.filter((_, i) => i % every === offset % values.length);
    return { ...common, x: some(common.x), y: some(line.y), mode: "markers", hoverinfo: "skip",
      marker: { color: shade, size: 9, symbol: styles.get(line.label).marker, line: { color: shade, width: 1 } } };
  }

  function lineTraces(panel, where) {
    const traces = [];
    const format = panel.share ? ".2%" : ".4~g";
    for (const line of panel.lines) {
      const x = line.x[where.name];
      const own = styles.get(line.label).name;
      const name = plain(line.part ? `${own}: ${line.part}` : own);
      const shade = line.behind ? faded(css("--ghost"), 0.8) : colour(line.label);
      const common = { x, meta: line.label, visible: !hidden.has(line.label), showlegend: false };
      if (line.low.length && !line.behind) {
        const edge = { ...common, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
        traces.push({ ...edge, y: line.high });
        traces.push({ ...edge, y: line.low, fill: "tonexty", fillcolor: faded(shade, styles.size > 4 ? 0.08 : 0.15) });
      }
      const dash = line.part.endsWith("bound") ? "dot" : panel.span ? "solid" : styles.get(line.label).dash;
      const last = line.y.map((_, i) => (i === line.y.length - 1 ? 11 : 0));
      const trace = {
        ...common, y: line.y, name: line.ended ? `${name} (diverged)` : name,
        mode: line.ended ? "lines+markers" : line.y.length < 2 ? "markers" : "lines",
        line: { color: shade, width: line.ended ? 1 : 2.2, dash },
        marker: { color: shade, size: line.ended ? last : 8, symbol: line.ended ? "x-thin" : styles.get(line.label).marker },
        hovertemplate: `%{y:${format}}<extra>%{fullData.name}</extra>`,
      };
      if (!line.ended && styles.size > 1 && panel.span === null) traces.push(markerTrace(common, line, shade));
      if (line.ended) trace.marker.line = { color: shade, width: 2 };
      traces.push(trace);
    }
    return traces;
  }

  const columns = (panel, count) => (panel.names.length === count ? panel.names.map(plain) : [...Array(count).keys()]);

  function barTraces(panel) {
    const alone = styles.size === 1 && panel.name === "participation";
    return [{
      type: "bar", y: panel.values, x: columns(panel, panel.values.length), showlegend: false, name: panel.title,
      marker: { color: alone ? colour(data.legend[0].label) : css("--accent"), line: { width: 0 } },
      hovertemplate: `${panel.column} %{x}: %{y:.4~g} ${panel.unit}<extra></extra>`,
    }];
  }

  function heatTraces(panel) {
    const light = [[0, "#ffffff"], [0.02, "#e1edf6"], [0.5, "#6baed6"], [1, "#08427a"]];
    const night = [[0, "#191d24"], [0.02, "#183447"], [0.5, "#2d7fb5"], [1, "#c8e9ff"]];
    return [{
      type: "heatmap", z: panel.values, x: columns(panel, panel.values[0].length), y: panel.rows.map(plain), colorscale: dark() ? night : light,
      xgap: panel.values[0].length > 120 ? 0 : 1, ygap: panel.rows.length > 40 ? 0 : 1, name: panel.title,
      showscale: panel.unit !== "", ...(panel.unit ? {} : { zmin: 0, zmax: 1 }),
      ...(panel.name === "final" ? { texttemplate: "%{z:.4~g}" } : {}),
      colorbar: { thickness: 10, outlinewidth: 0, tickfont: { color: css("--soft"), size: 11 },
        title: { text: panel.unit, font: { color: css("--soft"), size: 11 } } },
      hovertemplate: `${panel.column} %{x}, ${panel.row_title} %{y}${panel.unit && `: %{z} ${panel.unit}`}<extra></extra>`,
    }];
  }

  // One trace for the work that was folded, one for the rest.
  function stripTraces(panel) {
    const shade = colour(panel.label);
    return [1, 0].map((folded) => {
      const bars = panel.bars.filter((bar) => bar[3] === folded);
      return {
        type: "bar", orientation: "h", showlegend: false, name: folded ? "folded" : "dropped",
        y: bars.map((bar) => String(bar[0])), base: bars.map((bar) => bar[1]), x: bars.map((bar) => bar[2] - bar[1]),
        customdata: bars.map((bar) => bar[2]), visible: !hidden.has(panel.label),
        marker: { color: folded ? shade : faded(shade, 0.3), line: { width: 1, color: css("--card") } },
        hovertemplate: "client %{y}: %{base:.4~g} to %{customdata:.4~g}<extra>%{fullData.name}</extra>",
      };
    });
  }

  // Diverged seeds leave the stage: the axes are made for the others.
  function visibleValues(panel) {
    const shown = panel.lines.filter((line) => !hidden.has(line.label));
    const calm = shown.filter((line) => !line.ended);
    const goal = data.target && panel.name === data.target.metric ? [data.target.value] : [];
    return (calm.length ? calm : shown).flatMap((line) => [...line.y, ...line.low, ...line.high]).concat(goal)
      .filter((value) => !panel.log || value > 0);
  }

  function yRange(panel) {
    if (panel.span) return panel.span.map((v) => (panel.log ? Math.log10(v) : v));
    const values = visibleValues(panel).map((v) => (panel.log ? Math.log10(v) : v));
    if (!values.length) return [0, 1];
    const high = values.reduce((a, b) => Math.max(a, b));
    const low = values.reduce((a, b) => Math.min(a, b), panel.zero ? 0 : high);
    const space = (high - low || Math.abs(high) || 1) * 0.06;
    return [panel.zero ? 0 : low - space, high + space];
  }

  // Plain numbers at 1-2-5 steps where they fit, powers of ten where they do not.
  function logTicks([low, high]) {
    const decades = high - low;
    const steps = decades < 0.8 ? [1, 1.5, 2, 3, 4, 5, 7] : decades < 3 ? [1, 2, 5] : [1];
    const stride = Math.max(1, Math.ceil(decades / 8));
    const values = [];
    for (let power = Math.floor(low); power <= high; power += stride) {
      for (const step of steps) {
        const value = Number(`${step}e${power}`);
        if (Math.log10(value) >= low && Math.log10(value) <= high) values.push(value);
      }
    }
    const text = values.map((v) => (v >= 1e-4 && v < 1e6 ? String(v) : v.toExponential(0).replace(
      /^(\d)e\+?(-?\d+)$/, (_, digit, power) => `${digit === "1" ? "" : digit + "·"}10<sup>${power.replace("-", "−")}</sup>`)));
    return { tickvals: values, ticktext: text };
  }

  function layout(panel, where) {
    const lines = panel.kind === "lines";
    const few = lines && panel.lines.length <= 8;
    const own = {
      automargin: true, gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false,
      tickfont: { color: css("--soft"), size: 12 },
      title: { font: { color: css("--soft"), size: 12 }, standoff: 8 },
    };
    const result = {
      font: { family: css("--sans"), color: css("--ink"), size: 12 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 44, r: 10, t: 14, b: 40 }, showlegend: false, dragmode: "zoom",
      hovermode: few ? "x unified" : "closest", bargap: 0.12,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--line"), activecolor: css("--soft") },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"),
        font: { color: css("--ink"), family: css("--sans"), size: 12 }, namelength: -1 },
      xaxis: { ...own, showgrid: false, showline: true, ticks: "outside", ticklen: 4, tickcolor: css("--line"),
        title: { ...own.title, text: where ? where.title : "client" } },
      yaxis: { ...own },
    };
    if (lines) {
      const range = yRange(panel);
      const last = panel.lines.flatMap((line) => line.x[where.name]).reduce((a, b) => Math.max(a, b), 0);
      result.xaxis.range = [0, last * 1.02 || 1];
      if (panel.span) {
        Object.assign(result, { margin: { l: 34, r: 6, t: 6, b: 22 }, hovermode: "closest" });
        Object.assign(result.xaxis, { nticks: 4, title: { text: "" } });
        result.yaxis.nticks = 4;
      }
      Object.assign(result.yaxis, { range }, panel.share ? { tickformat: "~%" } : {},
        panel.log ? { type: "log", ...logTicks(range) } : {});
    } else if (panel.kind === "strip") {
      Object.assign(result.yaxis, { type: "category", categoryarray: panel.clients.map(String), categoryorder: "array",
        autorange: "reversed", showgrid: false, title: { ...own.title, text: "client" } });
      Object.assign(result, { barmode: "overlay", hovermode: "closest" });
      result.xaxis.title.text = "simulated time";
    } else if (panel.kind === "heat") {
      Object.assign(result.yaxis, { type: "category", autorange: "reversed", showgrid: false, title: { ...own.title, text: panel.row_title } });
      Object.assign(result.xaxis, { showline: false, ticks: "" });
      result.xaxis.title.text = panel.column;
    } else {
      Object.assign(result.yaxis, { title: { ...own.title, text: panel.unit }, rangemode: "tozero" });
      result.xaxis.title.text = panel.column;
    }
    // Names stay at equal distances, also those that look like numbers.
    if (panel.names && panel.names.length) result.xaxis.type = "category";
    return Object.assign(result, target(panel));
  }

  function target(panel) {
    if (!data.target || panel.name !== data.target.metric) return {};
    const y = panel.log ? Math.log10(data.target.value) : data.target.value;
    return {
      shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: data.target.value, y1: data.target.value,
        line: { color: css("--soft"), width: 1, dash: "dot" }, layer: "below" }],
      annotations: [{ xref: "paper", x: 0.005, y, text: "target", showarrow: false, xanchor: "left", yanchor: "bottom",
        font: { color: css("--soft"), size: 11 } }],
    };
  }

  const makers = { lines: lineTraces, bars: barTraces, heat: heatTraces, strip: stripTraces };
  const config = {
    responsive: true, displaylogo: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // none that leaves the page
  };

  function draw(section) {
    return Promise.all(section.panels.map((panel, index) => {
      const place = document.getElementById(`plot-${section.name}-${index}`);
      const where = axis[section.name];
      const named = { ...config, toImageButtonOptions: { filename: panel.name, format: "svg" } };
      return Plotly.react(place, makers[panel.kind](panel, where), layout(panel, where), named);
    }));
  }
  const drawAll = () => Promise.all(data.sections.map(draw));

  function applyTheme(forced) {
    const name = forced || theme || (system.matches ? "dark" : "light");
    root.dataset.theme = name;
    document.querySelector("#theme span").textContent = name === "dark" ? "Dark" : "Light";
    return drawAll();
  }

  function showLegend() {
    for (const button of methods) button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.label)));
    if (methods.length) document.getElementById("everything").hidden = hidden.size === 0;
  }
  function applyLegend() {
    showLegend();
    return drawAll();
  }
  function bindLegend() {
    methods = [...document.querySelectorAll(".method")];
    for (const button of methods) {
      const label = button.dataset.label;
      button.addEventListener("click", () => {
        if (!hidden.delete(label)) hidden.add(label);
        applyLegend();
      });
      button.addEventListener("dblclick", () => {
        for (const other of methods) hidden.add(other.dataset.label);
        hidden.delete(label);
        applyLegend();
      });
    }
    if (methods.length) document.getElementById("everything").addEventListener("click", () => { hidden.clear(); applyLegend(); });
    showLegend();
  }
  function bindAxes() {
    for (const chooser of document.querySelectorAll(".switch")) {
      const section = data.sections.find((s) => s.name === chooser.dataset.section);
      for (const input of chooser.querySelectorAll("input")) input.checked = input.value === axis[section.name].name;
      chooser.addEventListener("change", (event) => {
        axis[section.name] = section.axes.find((a) => a.name === event.target.value);
        draw(section);
      });
    }
  }
  // A table that is wider than its place says so.
  const watcher = new ResizeObserver((entries) => {
    for (const { target } of entries) target.previousElementSibling.hidden = target.scrollWidth <= target.clientWidth + 1;
  });
  function bindTables() {
    watcher.disconnect();
    for (const region of document.querySelectorAll(".scroll")) {
      const hint = document.createElement("p");
      Object.assign(hint, { className: "more", textContent: "Scroll sideways for more columns →", hidden: true });
      region.before(hint);
      watcher.observe(region);
    }
  }
  function bindTheme() {
    document.getElementById("theme").addEventListener("click", () => {
      theme = dark() ? "light" : "dark";
      applyTheme();
    });
  }
  system.addEventListener("change", () => applyTheme());
  window.addEventListener("beforeprint", () => applyTheme("light"));
  window.addEventListener("afterprint", () => applyTheme());

  // Whoever puts new content into the page calls this again.
  window.drawReport = () => {
    read();
    for (const bind of [bindLegend, bindAxes, bindTables, bindTheme]) bind();
    return applyTheme();
  };
  window.drawReport().then(() => { root.dataset.ready = "yes"; });
})();
