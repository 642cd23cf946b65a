/** The model picker: the models that the server has loaded. */
import { sentence } from "../net/problems.js";
import { $, element } from "./dom.js";
import { notice } from "./notices.js";
import { prefer, preference } from "./preferences.js";

/** @param {import("../app.js").App} app */
export async function startModels(app) {
  const select = $("model");
  let models;
  const load = async () => {
    models = await app.connection.persist(() => app.service.models());
    app.useModels(models);
    const wanted = select.value || preference("model", "");
    const chosen = models.find(({ id }) => id === wanted) ?? models.find((model) => model.default) ?? models[0];
    select.replaceChildren(
      ...models.map(({ id, title, licence }) => element("option", { value: id, title: `${title} (${licence})` }, id)),
    );
    select.disabled = models.length < 2;
    if (!chosen) {
      notice("models", "This server has no model for segmenting: set one up with triton-sam setup.");
      return;
    }
    notice("models", "");
    select.value = chosen.id;
    select.title = `${chosen.title} (${chosen.licence})`;
    app.useModel(chosen.id);
  };
  select.onchange = () => {
    const chosen = models.find(({ id }) => id === select.value);
    select.title = `${chosen.title} (${chosen.licence})`;
    prefer("model", chosen.id);
    app.useModel(chosen.id);
    $("surface").focus(); // otherwise typed letters would choose another model
  };
  app.connection.addEventListener("back", () => load().catch(() => {}));
  try {
    await load();
  } catch (error) {
    notice("models", sentence(error));
  }
}
