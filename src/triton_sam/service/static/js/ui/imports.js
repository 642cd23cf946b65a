/** Registers what reads annotations and classes from files, and the button that opens such files. */
import { isGreyPng, isTiff } from "../import/label_files.js";
import { LABELS } from "../core/label_keyword.js";
import { isPng, pngTexts } from "../import/png_reader.js";
import { isNamedAsLabels } from "../core/name_matching.js";
import { importerOf, registerImporter } from "../importers.js";
import { Problem, sentence } from "../net/problems.js";
import { $ } from "./dom.js";

/** What reads the files is loaded when the first one comes. */
const importing = (name) => async (app, file) => {
  const reading = await import("../import/importing.js").catch(() => {
    throw new Problem("unreachable");
  });
  return reading[name](app, file);
};
const [importJson, importText, importLabels] = ["importJson", "importText", "importLabels"].map(importing);

const isJson = ({ name }) => /\.(geo)?json$/i.test(name);
/** A dropped text is a list of classes only if its name says so. */
const isClassText = ({ name }) => /(class|label|categor)[^/]*\.txt$|\.names$/i.test(name);
/** Among dropped images a label image says what it is, by its text or by its name; a photograph has colours. */
const isLabels = (file, head) =>
  LABELS in pngTexts(head) || (isNamedAsLabels(file.name) && (isGreyPng(head) || isTiff(head)));

/** @param {import("../app.js").App} app */
export function startImports(app) {
  registerImporter({ accepts: isJson, run: importJson, endings: ".json,.geojson" });
  registerImporter({ accepts: isClassText, run: importText, endings: ".txt,.names" });
  registerImporter({ accepts: isLabels, run: importLabels, endings: ".png,.tif,.tiff" });
  const input = $("import-file");
  $("import").onclick = () => input.click();
  input.onchange = async () => {
    const files = [...input.files];
    input.value = ""; // otherwise the same file could not be chosen again
    for (const file of files) await importFile(app, file);
  };
}

/** A file that the user says is no image to work on: any PNG and TIFF is a label image, any text a list of classes. */
async function importFile(app, file) {
  try {
    const head = new Uint8Array(await file.slice(0, 8).arrayBuffer());
    const importer = await importerOf(file);
    if (importer) await importer.run(app, file);
    else if (isPng(head) || isTiff(head)) await importLabels(app, file);
    else if (/\.txt$/i.test(file.name)) await importText(app, file);
    else app.notice("import", `${file.name} has no annotations that the page reads: COCO and GeoJSON files, PNG and TIFF label images.`);
  } catch (error) {
    app.notice("import", sentence(error));
  }
}
