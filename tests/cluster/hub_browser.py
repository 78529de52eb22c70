"""Runs beside a JupyterHub: somebody uses it in Debian's Chromium, driven by selenium.

Standard input is JSON: the hub's URL, a login name, a password, and a folder for pictures. Prints
JSON: what the person saw.
"""

import json
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 120
_CELL = ".jp-Notebook .jp-CodeCell .cm-content"
CELL = "import os; here = 1; print('job', os.environ['SLURM_JOB_ID'])"
AFTER = "print('here is', 'there' if 'here' in dir() else 'gone')"


class Browser:
    """A browser without a history."""

    def __init__(self, pictures):
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.add_argument(f"--user-data-dir={tempfile.mkdtemp()}")
        options.add_argument("--window-size=1280,1100")
        options.binary_location = "/usr/bin/chromium"
        service = webdriver.ChromeService("/usr/bin/chromedriver")
        self.chromium = webdriver.Chrome(options, service)
        self.pictures = Path(pictures)

    def find(self, selector):
        """Wait for an element that is shown, and return it."""

        def shown(chromium):
            found = chromium.find_elements(By.CSS_SELECTOR, selector)
            return next((one for one in found if one.is_displayed()), None)

        return WebDriverWait(self.chromium, PATIENCE).until(shown, f"no {selector}: {self.text()}")

    def text(self):
        return self.chromium.find_element(By.TAG_NAME, "body").text

    def wait_for_text(self, words):
        wait = WebDriverWait(self.chromium, PATIENCE, ignored_exceptions=[Exception])
        return wait.until(lambda _: words in (said := self.text()) and said, f"no {words!r}")

    def keep(self, name):
        self.chromium.save_screenshot(str(self.pictures / f"{name}.png"))

    def run_cell(self, code):
        """Type code into the last cell of the notebook, and run it."""
        cells = self.chromium.find_elements(
            By.CSS_SELECTOR, ".jp-Notebook .jp-CodeCell .cm-content"
        )
        cells[-1].click()
        ActionChains(self.chromium).send_keys(code).key_down(Keys.SHIFT).send_keys(
            Keys.ENTER
        ).key_up(Keys.SHIFT).perform()


def main(told):
    browser = Browser(told["pictures"])
    seen = {}
    browser.chromium.get(f"{told['base']}/hub/spawn")
    browser.find("[name=username]").send_keys(told["user"])
    browser.find("[name=password]").send_keys(told["password"])
    browser.find("[type=submit]").click()
    browser.find(f"[name=profile][value='{told['profile']}']").click()
    seen["form"] = browser.text()
    browser.keep("form")
    browser.find("[type=submit]").click()
    browser.wait_for_text("Event log")
    details = browser.find("#progress-details")
    browser.chromium.execute_script("arguments[0].open = true", details)
    seen["waiting"] = browser.wait_for_text("Job ")
    browser.keep("waiting")
    browser.find(".jp-LauncherCard[data-category=Notebook]").click()
    browser.find(_CELL)
    browser.find(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    browser.run_cell(CELL)
    seen["cell"] = browser.find(".jp-OutputArea-output pre").text
    browser.keep("lab")
    browser.find("[data-jp-item-name=restart] jp-button").click()
    browser.find(".jp-Dialog .jp-mod-accept").click()
    browser.find(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    browser.run_cell(AFTER)
    seen["restarted"] = browser.wait_for_text("here is gone")
    print(json.dumps(seen))


main(json.load(sys.stdin))
