"""Runs beside a JupyterHub: people log in, start servers and run code in kernels.

Standard input is JSON: the hub's URL, and a list of steps, done one after the other. A step names
people, who do it at the same time, and what they do; see `Person`. Prints JSON: what each person
saw, a list for each step.
"""

import asyncio
import json
import re
import sys
import time
import uuid
from http.cookies import SimpleCookie
from urllib.parse import quote, urlencode, urljoin, urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

PATIENCE = 600
AsyncHTTPClient.configure(None, max_clients=200)


class Person:
    """A browser of one person: cookies, and the pages of the hub."""

    def __init__(self, base, name, password):
        self.base, self.name, self.password = base, name, password
        self.cookies, self.kernel = {}, None

    async def fetch(self, path, *, form=None, method=None, body=None, headers=None, times=20):
        """Fetch a page, follow redirects with the cookies, and return the answer."""
        url = urljoin(self.base, path)
        for _ in range(times):
            path = urlsplit(url).path
            cookies = "; ".join(
                f"{name}={value}"
                for (where, name), value in self.cookies.items()
                if path.startswith(where)
            )
            answer = await AsyncHTTPClient().fetch(
                HTTPRequest(
                    url,
                    method or ("POST" if form is not None else "GET"),
                    {"Cookie": cookies, **(headers or {})},
                    urlencode(form) if form is not None else body,
                    follow_redirects=False,
                    request_timeout=PATIENCE,
                ),
                raise_error=False,
            )
            for line in answer.headers.get_list("Set-Cookie"):
                for name, morsel in SimpleCookie(line).items():
                    self.cookies[morsel["path"] or "/", name] = morsel.value
            if answer.code not in (301, 302, 303, 307):
                return answer
            url, form, method, body = urljoin(url, answer.headers["Location"]), None, None, None
        raise RuntimeError(f"too many redirects: {url}")

    @property
    def origin(self):
        return self.base.rstrip("/")

    def xsrf(self, path="/hub/"):
        return self.cookies.get((path, "_xsrf"), "")

    async def login(self):
        """Log in, again if nslcd refuses: slapd has five seconds, which a busy machine takes."""
        for _ in range(10):
            await self.fetch("/hub/login")
            form = {"username": self.name, "password": self.password, "_xsrf": self.xsrf()}
            answer = await self.fetch("/hub/login?next=%2Fhub%2Fhome", form=form)
            if answer.code == 200 and f'user: "{self.name}"' in answer.body.decode():
                return True
            await asyncio.sleep(2)
        return False

    async def form(self):
        """Open the page with the profiles."""
        began = time.time()
        answer = await self.fetch(f"/hub/spawn/{self.name}")
        return {"seconds": time.time() - began, "html": answer.body.decode()}

    async def start(self, server="", **options):
        """Send the form; return what the next page says."""
        answer = await self.fetch(
            f"/hub/spawn/{self.name}{server and '/' + server}?_xsrf={quote(self.xsrf())}",
            form=options,
        )
        return {"code": answer.code, "html": answer.body.decode()}

    async def ready(self, server=""):
        """Follow the progress of the spawn; return its messages and the seconds."""
        began = time.time()
        answer = await self.fetch(
            f"/hub/api/users/{self.name}/server{server and 's/' + server}/progress",
            headers={"X-XSRFToken": self.xsrf()},
        )
        lines = answer.body.decode().splitlines()
        events = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
        return {"seconds": time.time() - began, "events": events, "code": answer.code}

    async def run(self, code, restart=False):
        """Run code in this person's kernel, which is started at first; return its output."""
        home = f"/user/{self.name}/"
        if self.kernel is None:
            # After a restart of the hub, its proxy may learn half a minute later of a server.
            end = time.time() + PATIENCE
            while not await self.enters(home) and time.time() < end:
                await asyncio.sleep(1)
            made = await self.api(home + "api/kernels", "POST", "{}")
            self.kernel = made["id"]
        elif restart:
            await self.api(f"{home}api/kernels/{self.kernel}/restart", "POST", "{}")
        url = f"ws{self.origin[4:]}{home}api/kernels/{self.kernel}/channels"
        jar = "; ".join(
            f"{name}={value}"
            for (where, name), value in self.cookies.items()
            if where in ("/", home)
        )
        line = await websocket_connect(HTTPRequest(url, headers={"Cookie": jar}))
        return await execute(line, code)

    async def enters(self, home):
        """Open the server's page, which logs in there; return whether its API answers then."""
        await self.fetch(home + "lab")
        answer = await self.fetch(home + "api/status")
        return answer.code == 200 and b"kernels" in answer.body

    async def api(self, path, method, body=None):
        answer = await self.fetch(
            path,
            method=method,
            body=body,
            headers={"X-XSRFToken": self.xsrf(f"/user/{self.name}/")},
        )
        if answer.code >= 400:
            text = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]+>|\s+", " ", answer.body.decode())
            raise RuntimeError(f"{path}: {answer.code} {text[:500]}")
        return json.loads(answer.body) if answer.body else None

    async def stop(self, server=""):
        answer = await self.fetch(
            f"/hub/api/users/{self.name}/server{server and 's/' + server}",
            method="DELETE",
            headers={"X-XSRFToken": self.xsrf()},
        )
        return answer.code


async def execute(line, code):
    """Run code in a kernel; return its output."""
    ours, said = uuid.uuid4().hex, ""
    header = {
        "msg_id": ours,
        "username": "",
        "session": ours,
        "msg_type": "execute_request",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "user_expressions": {}, "allow_stdin": False}
    await line.write_message(
        json.dumps(
            {
                "header": header,
                "parent_header": {},
                "metadata": {},
                "channel": "shell",
                "content": content,
            }
        )
    )
    while True:
        heard = json.loads(await asyncio.wait_for(line.read_message(), PATIENCE))
        if heard["parent_header"].get("msg_id") != ours:
            continue
        if heard["msg_type"] in ("stream", "error"):
            said += heard["content"].get("text") or str(heard["content"])
        if heard["msg_type"] == "status" and heard["content"]["execution_state"] == "idle":
            line.close()
            return said.strip()


async def main():
    asked = json.load(sys.stdin)
    people = {
        name: Person(asked["base"], name, password) for name, password in asked["people"].items()
    }
    seen = []
    for names, action, options in asked["steps"]:
        doing = (getattr(people[name], action)(**options) for name in names)
        seen.append(await asyncio.gather(*doing))
    print(json.dumps(seen))


asyncio.run(main())
