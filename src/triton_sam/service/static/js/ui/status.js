/** The status line: image, mouse position, latency, server; and the message while the server is away. */
import { sentence } from "../net/problems.js";
import { $ } from "./dom.js";
import { notice } from "./notices.js";

const STATES = { connecting: "Connecting", ready: "Server ready", away: "Server away", locked: "Token needed" };

/**
 * @param {import("../app.js").App} app
 * @param {import("../draw/stage.js").Stage} stage
 * @param {import("../interaction.js").Interaction} interaction
 */
export function startStatus(app, stage, interaction) {
  app.addEventListener("latency", () => {
    const { serverMs, roundTripMs } = app.latency;
    $("status-latency").textContent = `server ${serverMs.toFixed(0)} ms · round trip ${roundTripMs.toFixed(0)} ms`;
  });
  interaction.addEventListener("cursor", () => {
    const { cursor } = interaction;
    const isInside = cursor && app.picture && cursor.x >= 0 && cursor.y >= 0 && cursor.x < app.picture.width && cursor.y < app.picture.height;
    $("status-cursor").textContent = isInside ? `x ${Math.floor(cursor.x)}, y ${Math.floor(cursor.y)}` : "";
  });
  app.connection.addEventListener("state", () => {
    const { state, problem } = app.connection;
    $("status-connection").dataset.state = state;
    $("status-connection").textContent = STATES[state];
    notice("server", state === "away" ? sentence(problem) : "");
  });
  return () => {
    if (!app.picture) return;
    const { width, height } = app.picture;
    $("status-picture").textContent = `${width} × ${height} px · ${Math.round(100 * stage.view.scale)} %`;
  };
}
