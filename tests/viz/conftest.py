"""A real browser for the pages: headless chromium, spoken to over a pipe, with nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs chromium; skipped where there is none, but fails in CI")


INSTALL = "browser tests need chromium; try: apt-get install -y chromium"


class Browser:
    """One page in chromium. `complaints` holds what its console said and what it tried to load.

    browser.open(path); browser.run("document.title"); browser.hover("#keys button"); browser.press("]")
    """

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if program is None:
            raise FileNotFoundError(INSTALL)
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command = [program, *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        to_browser, from_browser = os.pipe(), os.pipe()
        its_ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_browser[0], from_browser[1])]

        def take_pipes() -> None:  # chromium reads from 3 and writes to 4
            os.dup2(its_ends[0], 3)
            os.dup2(its_ends[1], 4)

        self.process = subprocess.Popen(
            command, close_fds=False, preexec_fn=take_pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for fd in (to_browser[0], from_browser[1], *its_ends):
            os.close(fd)
        self.said: BinaryIO = os.fdopen(from_browser[0], "rb")
        self.told: BinaryIO = os.fdopen(to_browser[1], "wb")
        self.number, self.session, self.rest = 0, "", b""
        self.complaints: list[Any] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **given: Any) -> Any:
        """Send one command, and wait for its answer; events that arrive on the way are noted."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": given}
        if self.session:
            message["sessionId"] = self.session
        self.told.write(json.dumps(message).encode() + b"\0")
        self.told.flush()
        while (answer := self.hear()).get("id") != self.number:
            self.note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def hear(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            heard = os.read(self.said.fileno(), 1 << 20)
            assert heard, "the browser has gone"
            self.rest += heard
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]

    def note(self, event: dict[str, Any]) -> None:
        name, told = event.get("method", ""), event.get("params", {})
        loads = name == "Network.requestWillBeSent" and not told["request"]["url"].startswith(("file:", "data:"))
        if loads or name in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append((name, told))

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a file, and wait until it is there."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.complaints.clear()
        self.ask("Page.navigate", url=path.as_uri())
        event: dict[str, Any] = {}
        while event.get("method") != "Page.loadEventFired":
            self.note(event := self.hear())

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        told = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def hover(
        self, selector: str, number: int = 0, *, at: tuple[float, float] = (0.5, 0.5), click: bool = False
    ) -> None:
        """Move the mouse onto an element, to a share of its width and height, and press it if asked to."""
        found = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        box = self.run(f"{found}.scrollIntoView({{block: 'nearest'}}), {found}.getBoundingClientRect().toJSON()")
        place = {"x": box["x"] + at[0] * box["width"], "y": box["y"] + at[1] * box["height"]}
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key: str) -> None:
        """One key on the keyboard; a single character is typed too."""
        text = {"text": key} if len(key) == 1 else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path) -> None:
        """Save what is seen, as PNG."""
        whole = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(whole["data"]))

    def close(self) -> None:
        self.told.close()
        self.process.terminate()
        self.process.wait()
        self.said.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, started once. Where it is missing tests are skipped with the line that installs it; in CI they fail."""
    try:
        running = Browser(tmp_path_factory.mktemp("chromium"))
    except FileNotFoundError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    yield running
    running.close()
