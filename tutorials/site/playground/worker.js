// Runs Python in a worker of the page. It answers the messages of the editor, also those sent while Python starts.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const beside = (name) => new URL(name, import.meta.url).href;

async function fetched(name) {
  const response = await fetch(beside(name));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response;
}

/** Returns the memory of a started Python, as saved by snapshot.mjs. */
async function memory() {
  const { body } = await fetched("memory.bin");
  return new Response(body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** Returns Python. If the saved memory is missing or refused, starts Python anew, which takes three times as long. */
async function loaded() {
  const options = { indexURL: beside("pyodide/") };
  try {
    return await loadPyodide({ ...options, _loadSnapshot: memory() });
  } catch (error) {
    console.warn(`Python starts anew: ${error.message}`);
    return loadPyodide(options);
  }
}

async function start() {
  const archive = fetched("minipipe.zip").then((response) => response.arrayBuffer());
  const python = await loaded();
  python.unpackArchive(await archive, "zip"); // its files are not in the memory
  return python.runPython("from minipipe.render.editor import Editor\nEditor().ask");
}

const started = start();
addEventListener("message", async ({ data }) => {
  try {
    postMessage((await started)(data));
  } catch (error) {
    reportError(error); // to the page
  }
});
