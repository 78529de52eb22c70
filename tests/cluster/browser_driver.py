"""Runs on the ledger's host: people use the pages in Debian's Chromium, driven by selenium.

Standard input is JSON: the base URL, how to log in, and what each person does; see `main`. Prints
JSON: for each person what they saw.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 120
_LOADED = "return !window.before && document.readyState === 'complete'"


class Browser:
    """A browser without a history, and where its downloads go."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.folder = Path(tempfile.mkdtemp())
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.add_argument(f"--user-data-dir={tempfile.mkdtemp()}")
        options.add_experimental_option("prefs", {"download.default_directory": str(self.folder)})
        options.binary_location = "/usr/bin/chromium"
        service = webdriver.ChromeService("/usr/bin/chromedriver")
        self.chromium = webdriver.Chrome(options, service)

    def open(self, path: str) -> str:
        """Open a page of the portal; return its text."""
        self.chromium.get(self.base + path)
        return self.text()

    def text(self) -> str:
        return str(self.chromium.find_element(By.TAG_NAME, "body").text)

    def fill(self, **fields: str) -> None:
        for name, value in fields.items():
            field = self.chromium.find_element(By.NAME, name)
            if field.get_attribute("type") == "date":  # what keys do there depends on the language
                self.chromium.execute_script("arguments[0].value = arguments[1]", field, value)
            else:
                field.send_keys(value)

    def press(self, words: str) -> str:
        """Press a button or a link, and wait for the next page; return its text."""
        path = f'//*[self::button or self::a][.="{words}"]'
        found = self.chromium.find_elements(By.XPATH, path)
        assert found, f"no {words!r} on this page: {self.text()}"
        self.chromium.execute_script("window.before = true")
        found[0].click()
        self.wait(lambda _: self.chromium.execute_script(_LOADED))
        return self.text()

    def download(self, path: str) -> Any:
        """Open a link to a JSON file; return what is in it."""
        self.chromium.get(self.base + path)
        # It has the name from the begin, is empty, and is replaced once all of it is there.
        self.wait(lambda _: [one for one in self.folder.glob("*.json") if one.stat().st_size])
        (file,) = self.folder.glob("*.json")
        value = json.loads(file.read_text("utf-8"))
        file.unlink()
        return value

    def wait(self, condition: Any) -> None:
        # Between two pages there is nothing to ask.
        WebDriverWait(self.chromium, PATIENCE, 0.1, [WebDriverException]).until(condition)


def log_in(browser: Browser, way: str, person: dict[str, Any]) -> str:
    """Log in on the way to Home; return the text of the page that follows."""
    browser.open("/")
    if way == "oidc":
        browser.press("Log in with your site's account")
    if way == "ldap":
        browser.fill(name=person["name"], password=person["password"])
        return browser.press("Log in")
    browser.fill(login=person["name"], password="any")
    browser.press("Sign-in")
    return browser.press("Continue")  # yes, the pages may know who one is


def use(way: str, base: str, person: dict[str, Any]) -> dict[str, Any]:
    """Let a person do everything; return the texts of the pages, and the rows of downloads."""
    browser = Browser(base)
    try:
        seen: dict[str, Any] = {"home": log_in(browser, way, person)}
        seen["downloads"] = [browser.download(link) for link in person.get("downloads", ())]
        seen["pages"] = [browser.open(path) for path in person.get("pages", ())]
        if deputy := person.get("deputy"):
            browser.open("/account")
            browser.fill(user=deputy["user"], until=deputy["until"])
            seen["named"] = browser.press("Name deputy")
        if person.get("ends"):
            browser.open("/account")
            seen["ended"] = browser.press(f"End {person['ends']}")
        if person.get("logs_out"):
            browser.open("/")
            seen["out"] = browser.press("Log out")
            seen["after"] = browser.open("/")
        return seen
    finally:
        browser.chromium.quit()


def main() -> None:
    """Read what to do, and tell what was seen."""
    told = json.load(sys.stdin)
    print(json.dumps([use(told["way"], told["base"], person) for person in told["people"]]))


main()
