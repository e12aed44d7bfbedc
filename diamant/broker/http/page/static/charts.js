// The charts of the history, drawn by uPlot and redrawn with every sample.
"use strict";

const charts = [];

function short(value, unit) {
  if (value === null || value === undefined) return "–";
  if (!unit.startsWith("bytes")) return value.toLocaleString("en", { maximumSignificantDigits: 4 });
  const names = ["", "k", "M", "G", "T"];
  let step = 0;
  while (Math.abs(value) >= 1000 && step < names.length - 1) {
    value /= 1000;
    step += 1;
  }
  return `${value.toLocaleString("en", { maximumSignificantDigits: 4 })} ${names[step]}B`;
}

// In UTC, as all times of the page.
function clock(time, hasSeconds) {
  return new Date(time * 1000).toISOString().slice(11, hasSeconds ? 19 : 16);
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function draw(figure, history) {
  const series = JSON.parse(figure.dataset.series);
  const unit = figure.dataset.unit;
  const data = [history.times_ms.map((time) => time / 1000), ...series.map(([name]) => history.series[name])];
  const colors = ["--live", "--superseded", "--tombstones", "--aborted"].map(color);
  const axis = { stroke: color("--ink"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
  const options = {
    width: figure.clientWidth,
    height: 180,
    tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
    series: [
      { value: (_, time) => (time === null ? "–" : clock(time, true)) },
      ...series.map(([, label], index) => ({
        label,
        stroke: colors[index],
        width: 2,
        points: { show: data[0].length < 3 },
        value: (_, value) => short(value, unit),
      })),
    ],
    axes: [{ ...axis, space: 75, values: (_, times) => times.map((time) => clock(time, times[1] - times[0] < 60)) }, { ...axis, size: 70, values: (_, values) => values.map((value) => short(value, unit)) }],
    scales: { x: { range: (chart, first, last) => {
      const end = chart.data[0].length > 1 ? last : first; // uPlot would stretch a single point to years
      return [Math.min(first, end - 120), end];
    } }, y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
  };
  charts.push([figure, new uPlot(options, data, figure), series]);
}

async function refresh() {
  if (!document.hidden) {
    const topic = document.querySelector(".charts").dataset.topic;
    const answer = await fetch(`/v1/history${topic ? `?topic=${encodeURIComponent(topic)}` : ""}`);
    const history = await answer.json();
    if (!charts.length) document.querySelectorAll(".chart").forEach((figure) => draw(figure, history));
    else for (const [, chart, series] of charts) chart.setData([history.times_ms.map((time) => time / 1000), ...series.map(([name]) => history.series[name])]);
  }
}

refresh();
setInterval(() => refresh().catch(() => {}), 30000);
addEventListener("resize", () => charts.forEach(([figure, chart]) => chart.setSize({ width: figure.clientWidth, height: 180 })));
