// The two transports of the protocol, and the queue before them: one message at a time, in order.

/** Asks Python on this machine, which has served the page. */
function overHttp() {
  return async (message) => {
    const headers = { "Content-Type": "application/json" };
    const response = await fetch("ask", { method: "POST", headers, body: JSON.stringify(message) });
    if (!response.ok) throw new Error(await response.text());
    return response.json();
  };
}

/** Asks Python in a worker of the page. */
function overWorker() {
  const worker = new Worker("worker.js", { type: "module" });
  const waiting = [];
  worker.addEventListener("message", ({ data }) => waiting.shift().resolve(JSON.parse(data)));
  worker.addEventListener("error", (event) => {
    event.preventDefault();
    for (const { reject } of waiting.splice(0)) reject(new Error(event.message || "the worker did not start"));
  });
  return (message) => new Promise((resolve, reject) => {
    waiting.push({ resolve, reject });
    worker.postMessage(JSON.stringify(message));
  });
}

class Desk {
  constructor(transport) {
    this.begin = transport === "http" ? overHttp : overWorker;
    this.queue = [];
    this.isBusy = false;
  }

  /** Resolves to the answer, or to null if a later message of the same kind, costs, text or block, replaces this one. */
  ask(message) {
    return new Promise((resolve, reject) => {
      const last = this.queue[this.queue.length - 1];
      if (last && last.message.do === message.do && ["costs", "text", "block"].includes(message.do)) this.queue.pop().resolve(null);
      this.queue.push({ message, resolve, reject });
      this.next();
    });
  }

  async next() {
    if (this.isBusy || !this.queue.length) return;
    this.isBusy = true;
    const { message, resolve, reject } = this.queue.shift();
    try {
      this.send ??= this.begin(); // throws where the page was opened from a file, which may start no worker
      resolve(await this.send(message));
    } catch (error) {
      reject(error);
    }
    this.isBusy = false;
    this.next();
  }
}
