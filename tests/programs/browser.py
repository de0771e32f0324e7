"""A headless Chromium that is told what to do line by line, by WebDriver (W3C), for tests of the
page. Each line on standard input is a JSON list, and each is answered by one line of JSON:

["open", URL]            goes there; null
["eval", SCRIPT]         what the script returns
["log"]                  the console's lines since the last time, as [level, source, message]
["screenshot", FILE]     of 1280 x 800 pixels; null
["scheme", "dark"]       what prefers-color-scheme says from now on; null
["move", X, Y]           the mouse goes there; null

Argument: a directory for the profile. An error is answered as {"error": TEXT}. The end of the input
ends it.
"""

import base64
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request

WIDTH, HEIGHT = 1280, 800


class Driver:
    def __init__(self, profile):
        self.process = subprocess.Popen(
            ["chromedriver", "--port=0", f"--log-path={profile}/chromedriver.log"], stdout=subprocess.PIPE, text=True
        )
        for line in self.process.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                break
        else:
            sys.exit("chromedriver has not started")
        self.url = f"http://127.0.0.1:{found[1]}/session"
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            "--no-proxy-server", f"--user-data-dir={profile}/profile", f"--window-size={WIDTH},{HEIGHT}",
        ]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self.url += "/" + made["sessionId"]
        # The window's size has its frame in it.
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        # No proxy: it is on this host.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error

    def devtools(self, command, parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def do(self, what, *words):
        if what == "open":
            return self.call("POST", "/url", {"url": words[0]})
        if what == "eval":
            return self.call("POST", "/execute/sync", {"script": words[0], "args": []})
        if what == "log":
            lines = self.call("POST", "/se/log", {"type": "browser"})
            return [[line["level"], line["source"], line["message"]] for line in lines]
        if what == "screenshot":
            with open(words[0], "wb") as file:
                file.write(base64.b64decode(self.call("GET", "/screenshot")))
            return None
        if what == "scheme":
            features = [{"name": "prefers-color-scheme", "value": words[0]}]
            return self.devtools("Emulation.setEmulatedMedia", {"features": features}) and None
        if what == "move":
            move = {"type": "pointerMove", "duration": 0, "x": words[0], "y": words[1]}
            return self.call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})
        raise RuntimeError(f"what is {what}?")

    def end(self):
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait()


def main():
    driver = Driver(sys.argv[1])
    try:
        for line in sys.stdin:
            try:
                answer = driver.do(*json.loads(line))
            except (RuntimeError, OSError) as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
    finally:
        driver.end()


main()
