"""A double of Linkerd's injector: a webhook that changes each new pod by the same patch, once.

Arguments: PORT CERTIFICATE KEY PATCH"""
import base64, json, ssl, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

port, certificate, key, patch = sys.argv[1:]


class Injector(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        response = {"uid": request["uid"], "allowed": True}
        if "linkerd.io/proxy-version" not in request["object"]["metadata"].get("annotations", {}):
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch.encode()).decode()}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(review).encode())


server = HTTPServer(("127.0.0.1", int(port)), Injector)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
