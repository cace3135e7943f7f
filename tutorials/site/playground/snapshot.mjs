// Starts Python as worker.js does, and saves a copy of its memory: node snapshot.mjs FOLDER FILE

import { readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const beside = (name) => resolve(folder, name);
const { loadPyodide } = await import(pathToFileURL(beside("pyodide/pyodide.mjs")));

const python = await loadPyodide({ indexURL: beside("pyodide/"), _makeSnapshot: true });
python.unpackArchive(new Uint8Array(readFileSync(beside("minipipe.zip"))), "zip");
python.runPython("from minipipe.render.editor import Editor\nEditor().do_show()");
writeFileSync(file, python.makeMemorySnapshot());
