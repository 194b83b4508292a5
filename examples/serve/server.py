#!/usr/bin/env python3
"""A model behind HTTP, with Berth as the engine's memory, and a page that shows what the memory does.

    python examples/serve/server.py model.onnx --workers 8 --cache /tmp/berth-cache

    POST /run     the inputs as an .npz file, by name; the answer is an .npz file with the outputs
    GET  /memory  the memory of every worker, as JSON
    GET  /        the same, live

Needs Berth's Python module, onnxruntime and NumPy. Workers are processes that accept from one socket; each is a
ThreadingHTTPServer. With a cache they share one copy of the weights.
"""
import argparse
import http.server
import io
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile

import numpy as np

import berth.onnxruntime as ort

PAGE = """<!doctype html><title>Memory of the workers</title><style>body{font:16px sans-serif;margin:2em}
td,th{padding:.2em 1em;text-align:right}svg{background:#f4f4f4}</style><h1>Memory of the workers</h1>
<svg id=chart width=720 height=200></svg><table id=table></table><script>
const mib = b => (b / 1048576).toFixed(1), past = [];
async function show() {
  const workers = await (await fetch("/memory")).json();
  past.push(workers.reduce((sum, w) => sum + w.pss, 0)); if (past.length > 120) past.shift();
  const top = Math.max(...past) * 1.1;
  chart.innerHTML = `<polyline fill=none stroke=#06c stroke-width=2 points="${
    past.map((b, i) => `${i * 6},${200 - 200 * b / top}`).join(" ")}"/><text x=8 y=20>${mib(past.at(-1))} MiB in all</text>`;
  table.innerHTML = "<tr><th>process<th>PSS MiB<th>private MiB<th>arenas MiB<th>runs<th>last run from the plan" +
    workers.map(w => `<tr><td>${w.process}<td>${mib(w.pss)}<td>${mib(w.private)}<td>${mib(w.arena)}<td>${w.runs}
      <td>${w.planned} of ${w.requests}`).join("");
}
setInterval(show, 500); show();
</script>"""


def memory_of(session):
    """What this process takes, as the system and the session see it."""
    system = {}
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        system[name] = int(rest.split()[0]) * 1024
    memory = session.memory
    return {"process": os.getpid(), "pss": system["Pss"], "private": system["Private_Clean"] + system["Private_Dirty"],
            "arena": memory.arena_bytes, "runs": memory.runs, "planned": memory.planned, "requests": memory.requests,
            "weights": memory.weights}


def handler(session, notes):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            try:
                with np.load(io.BytesIO(self.rfile.read(int(self.headers["Content-Length"])))) as inputs:
                    outputs = session.run(None, dict(inputs))
            except Exception as error:  # whatever is wrong with a request, the client hears it and the server goes on
                return self.answer(400, "text/plain", str(error).encode())
            body = io.BytesIO()
            np.savez(body, **{each.name: output for each, output in zip(session.get_outputs(), outputs)})
            note(session, notes)
            self.answer(200, "application/octet-stream", body.getvalue())

        def do_GET(self):
            if self.path == "/memory":
                note(session, notes)
                workers = [json.loads(each.read_text()) for each in sorted(notes.glob("*.json"))]
                return self.answer(200, "application/json", json.dumps(workers).encode())
            self.answer(200, "text/html; charset=utf-8", PAGE.encode())

        def answer(self, status, kind, body):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


def note(session, notes):
    """Leaves what this worker takes where the worker that is asked finds it."""
    partial = notes / f"{os.getpid()}-{os.urandom(4).hex()}.partial"
    partial.write_text(json.dumps(memory_of(session)))
    partial.replace(notes / f"{os.getpid()}.json")


class Server(http.server.ThreadingHTTPServer):
    def service_actions(self):  # twice a second: a worker without requests gives memory back too
        ort.give_back()


def serve(listening, arguments, notes):
    session = ort.InferenceSession(arguments.model, arguments.options(), weights_cache=arguments.cache or False)
    note(session, notes)
    server = Server(listening.getsockname(), handler(session, notes), bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--decay", type=float, default=10, help="seconds until unused memory is given back")
    parser.add_argument("--cache", help="a folder through which workers share the weights")
    arguments = parser.parse_args()

    def options():
        made = ort.SessionOptions()
        made.intra_op_num_threads = 1
        return made

    arguments.options = options
    ort.configure(decay=arguments.decay)
    listening = socket.create_server(("127.0.0.1", arguments.port), backlog=128)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            for _ in range(arguments.workers):  # forked before the engine has started a thread
                child = os.fork()
                if child == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    try:
                        serve(listening, arguments, pathlib.Path(folder))
                    finally:
                        os._exit(1)
                children.append(child)
            print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
            os.wait()  # a worker that ends has failed
        except KeyboardInterrupt:
            pass
        finally:
            for child in children:
                try:
                    os.kill(child, signal.SIGTERM)
                except ProcessLookupError:
                    pass


if __name__ == "__main__":
    main()
