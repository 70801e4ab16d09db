// Browsers start no Worker for a page that is opened from the file system. There, the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...urls) =>
        Promise.all(urls.map((one) => load(inner, new URL(one, url).href)));
      this.loaded = load(inner, url).then(() => inner);
    }
    postMessage(data) {
      this.loaded.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
  const load = (inner, src) =>
    new Promise((resolve, reject) => {
      const script = inner.document.createElement("script");
      Object.assign(script, { src, onload: resolve, onerror: reject });
      inner.document.body.append(script);
    });
}
