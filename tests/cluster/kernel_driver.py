"""Uses kernels of slurmkit as Jupyter does, step by step; prints JSON. Runs on the login node."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

from jupyter_client import AsyncMultiKernelManager

PATIENCE = 120.0


class Driver:
    """Some kernels by name."""

    def __init__(self) -> None:
        self.kernels = AsyncMultiKernelManager()
        self.ids: dict[str, str] = {}
        self.clients: dict[str, Any] = {}

    async def start(self, name: str, kernel: str = "slurmkit-gpu") -> str:
        """Start a kernel; return what went wrong."""
        try:
            self.ids[name] = await self.kernels.start_kernel(kernel_name=kernel)
        except Exception as error:  # noqa: BLE001 - the test reads it
            return str(error)
        await self.connect(name)
        return ""

    async def connect(self, name: str) -> None:
        if name in self.clients:
            self.clients[name].stop_channels()
        client = self.kernels.get_kernel(self.ids[name]).client()
        client.start_channels()
        await client.wait_for_ready(timeout=PATIENCE)
        self.clients[name] = client

    async def run(self, name: str, code: str, begun: asyncio.Event | None = None) -> str:
        """Run a cell; return what it wrote, or the name of its exception."""
        said: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                said.append(message["content"]["text"])
                if begun is not None:
                    begun.set()

        reply = await self.clients[name].execute_interactive(
            code, timeout=PATIENCE, output_hook=hear
        )
        content = reply["content"]
        return "".join(said) if content["status"] == "ok" else str(content["ename"])

    async def shell(self, command: str) -> str:
        """Do something outside of Jupyter; return what it printed."""
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        return done.stdout

    async def cut(self, name: str) -> str:
        """Cut the connection to the node, and wait until there is another one."""
        link = self.kernels.get_kernel(self.ids[name]).provisioner._link
        old = link._process
        old.kill()
        while link._process is old:
            await asyncio.sleep(0.1)
        # What a kernel says while nobody is connected is lost, as with every kernel of Jupyter.
        await self.clients[name].wait_for_ready(timeout=PATIENCE)
        return str(old.wait())

    async def interrupt(self, name: str, code: str) -> str:
        """Interrupt a cell once it has written something; return the name of its exception."""
        begun = asyncio.Event()
        running = asyncio.create_task(self.run(name, code, begun))
        await begun.wait()
        await self.kernels.interrupt_kernel(self.ids[name])
        return await running

    async def restart(self, name: str, now: bool = False) -> None:
        await self.kernels.restart_kernel(self.ids[name], now=now)
        await self.connect(name)

    async def lose(self, name: str) -> str:
        """Wait until the kernel has ended by itself; return whether Jupyter can restart it."""
        manager = self.kernels.get_kernel(self.ids[name])
        while await manager.is_alive():
            await asyncio.sleep(0.1)
        await manager.restart_kernel(now=True)  # as Jupyter does by itself
        return "alive" if await manager.is_alive() else "dead"

    async def stop(self, name: str) -> None:
        await self.kernels.shutdown_kernel(self.ids.pop(name))
        self.clients.pop(name).stop_channels()


async def main() -> None:
    """Do what the lines of standard input say; answer each with a line."""
    driver = Driver()
    try:
        for line in sys.stdin:
            step, *words = json.loads(line)
            answer = await getattr(driver, step)(*words)
            print(json.dumps(answer), flush=True)
    finally:
        await driver.kernels.shutdown_all(now=True)


asyncio.run(main())
