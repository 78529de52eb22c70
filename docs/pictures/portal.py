"""Make the pictures of the pages for PIs: `python3 docs/pictures/portal.py NAME`.

NAME is a fresh cluster of `docker/cluster up --with portal`; its ledger gets a month of invented
runs. Needs Chromium.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

HERE = Path(__file__).parent
CLUSTER = HERE.parents[1] / "docker" / "cluster"
WHO = "vogel"  # a PI
WIDTHS = {"portal-phone": (400, 2100), "portal-desktop": (1280, 1500)}
_HIDDEN = re.compile(r'<input type="hidden" name="([\w-]+)" value="([^"]*)"')
_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)">')


def run_in(service: str, name: str, *command: str, user: str = "root", text: str = "") -> str:
    """Return what a command in a container of the cluster prints."""
    argv = [CLUSTER, "exec", service, "--name", name, "--user", user, "--", *command]
    return subprocess.run(argv, input=text, check=True, stdout=subprocess.PIPE, text=True).stdout


def fill_ledger(name: str) -> None:
    """Give the ledger a month of runs."""
    argv = [sys.executable, HERE / "past_jobs.py"]
    runs = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
    form = ("--cluster", name, "--header", "--delimiter", "|")
    ingest = ("slurmkit", "ledger", "ingest", "--file", "-", *form)
    run_in("ledger", name, *ingest, user="slurmkit", text=runs)


def home_page(name: str) -> str:
    """Return Home as the PI sees it, with its style in it."""
    port = subprocess.run(
        ["docker", "port", f"slurmkit-{name}-portal", "80"],
        check=True, stdout=subprocess.PIPE, text=True,
    ).stdout.split()[0]  # fmt: skip
    base = f"http://{port}"
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    form = browser.open(f"{base}/login").read().decode()
    password = run_in("login", name, "cat", f"/secrets/people/{WHO}.password").strip()
    given = dict(_HIDDEN.findall(form)) | {"name": WHO, "password": password}
    sent = Request(f"{base}/login", urlencode(given).encode())  # noqa: S310  http, see above
    page = browser.open(sent).read().decode()
    style = _STYLE.search(page)
    if style is None:
        raise SystemExit("portal.py: the page has no style; was the login refused?")
    css = browser.open(base + style[1]).read().decode()
    return page.replace(style[0], f"<style>{css}</style>")


def main() -> None:
    """Draw Home on a phone and on a desktop."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or len(sys.argv) != 2:
        raise SystemExit("portal.py: give a cluster's name; Chromium is needed, too")
    fill_ledger(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "home.html").write_text(home_page(sys.argv[1]), "utf-8")
        for picture, (width, height) in WIDTHS.items():
            argv = [
                chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={folder}/profile", f"--window-size={width},{height}",
                f"--screenshot={HERE}/{picture}.png", (folder / "home.html").as_uri(),
            ]  # fmt: skip
            subprocess.run(argv, check=True, stderr=subprocess.DEVNULL)


main()
