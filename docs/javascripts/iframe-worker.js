/* Search in a site that was opened from a disk. A browser starts no Worker from a file, so that there a frame on the
   same page does a Worker's work: it runs the script, and passes messages in both directions. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      const script = document.createElement("script")
      // A Worker's global scope has importScripts, which the script waits for; a frame loads scripts one after the other.
      this.inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => new Promise((done, failed) => {
        const imported = this.inside.document.createElement("script")
        imported.src = new URL(each, url)
        imported.onload = done
        imported.onerror = failed
        this.inside.document.body.appendChild(imported)
      })), Promise.resolve())
      // What the script sends arrives here, and what is sent before the script listens is kept until then.
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      script.onload = () => { this.ready = true; this.waiting.splice(0).forEach(data => this.postMessage(data)) }
      script.onerror = () => this.dispatchEvent(new Event("error"))
      script.src = url
      this.inside.document.body.appendChild(script)
    }

    postMessage(data) {
      if (this.ready) this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
      else this.waiting.push(data)
    }

    terminate() { this.inside.frameElement.remove() }
  }
}
