"use strict";
// Polls the server for a new version of the page and replaces the changed parts of the document.
(() => {
  const PAUSE = 1500;
  let seen = null;

  async function text(path) {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.text();
  }

  async function renew() {
    const next = new DOMParser().parseFromString(await text("/"), "text/html");
    if (document.getElementById("waiting") || next.getElementById("waiting")) {
      if (!next.getElementById("waiting")) location.reload(); // the first round is there
      return;
    }
    document.title = next.title;
    // Plots must be removed before their containers are replaced.
    for (const plot of document.querySelectorAll(".plot")) Plotly.purge(plot);
    for (const part of ["header", "main", "nav.legend", "#data"]) {
      document.querySelector(part)?.replaceWith(next.querySelector(part) ?? "");
    }
    await window.drawReport();
  }

  async function look() {
    try {
      const version = await text("/version");
      if (seen !== null && version !== seen) await renew();
      seen = version;
      document.documentElement.dataset.live = "yes";
    } catch (error) {
      document.documentElement.dataset.live = "no"; // the server has ended, or is not there yet
    }
    setTimeout(look, PAUSE);
  }
  look();
})();
