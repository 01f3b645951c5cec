/* Browsers start no worker from a file. Where the site is opened from a disk, its search runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source === inside) {
          const copy = new MessageEvent("message", { data: event.data });
          this.dispatchEvent(copy);
          if (this.onmessage) this.onmessage(copy);
        }
      });
      inside.document.open();
      inside.document.write(`<script>
        window.postMessage = (data) => parent.dispatchEvent(new MessageEvent("message", { data, source: window }));
        window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: done, onerror: failed });
          document.body.append(script);
        })), Promise.resolve());
      <\/script><body><script src="${url}"><\/script>`);
      inside.document.close();
      this.postMessage = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
