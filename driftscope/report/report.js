// Draws the figures in the page's colours, again when those change: dark mode, printing.
(() => {
  "use strict";
  const { figures, config } = JSON.parse(document.getElementById("figures").textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = () => ({ gridcolor: color("--grid"), linecolor: color("--line"), zerolinecolor: color("--line"), automargin: true });
  const template = () => ({
    layout: {
      font: { color: color("--ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
      xaxis: axis(),
      yaxis: axis(),
      hoverlabel: { bgcolor: color("--raised"), bordercolor: color("--line"), font: { color: color("--ink") } },
    },
  });
  const place = (index) => document.getElementById(`figure-${index}`);
  const draw = () => figures.forEach(({ data, layout }, index) => {
    const element = place(index);
    Plotly.react(element, data, { ...layout, height: element.clientHeight, template: template() }, config);
  });
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("print").addEventListener("change", draw);
  document.documentElement.dataset.drawn = "yes";
})();
