"""Servers on loopback ports, in the shapes that Redis comes in: started, joined together, killed and frozen by tests."""

import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from eventstore.endpoint import TROUBLE, Endpoint
from eventstore.link import ReplyError
from eventstore.slots import serving, slot_of
from eventstore.socket_link import Limits, bare_call
from tests import clocks

_QUICK = Limits(connect_s=0.5, patience_s=0.5, silence_s=0.5)
NODE_TIMEOUT_MS = 500


async def until(holds: Callable[[], Awaitable[Any]], within_s: float = 10.0) -> Any:
    """Wait until *holds* answers something true, and return that; troubles of a connection count as not yet."""
    with anyio.fail_after(within_s):
        while True:
            try:
                if found := await holds():
                    return found
            except TROUBLE:
                pass
            await anyio.sleep(0.01)


async def ask(server: Endpoint, *words: str | int) -> Any:
    """Send one command over a connection of its own."""
    async with bare_call(server, _QUICK) as call:
        return await call(*words)


async def info(server: Endpoint, section: str) -> dict[str, str]:
    text = await ask(server, "INFO", section)
    return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)


class Server:
    """A process that listens on a port of its own."""

    def __init__(
        self, words: Sequence[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._words = words
        self._environment = {**os.environ, **(environment or {})}
        self.endpoint = Endpoint(port=port)
        self.folder = folder
        self.process = self._started()

    async def ask(self, *words: str | int) -> Any:
        return await ask(self.endpoint, *words)

    async def told(self, *words: str | int) -> Any:
        """The answer to a command that may be sent twice, as soon as there is one."""
        return (await until(partial(self._answered, *words)))[0]

    async def _answered(self, *words: str | int) -> tuple[Any]:
        return (await self.ask(*words),)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        clocks.tidy(self.process.pid)

    def restart(self, *more: str) -> None:
        self.process = self._started(*more)

    @contextmanager
    def frozen(self) -> Any:
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def _started(self, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen((*self._words, *more), cwd=self.folder, env=self._environment)


class Yard:
    """Starts servers below *folder*; made by `open_yard`, which ends them."""

    def __init__(self, folder: Path, binary: str) -> None:
        self._folder = folder
        self._binary = binary
        self.servers: list[Server] = []
        self._shared: ClusterYard | None = None
        self._pair: tuple[Server, Server] | None = None

    async def server(self, *options: str, off_s: int = 0) -> Server:
        """Start a server whose clock is *off_s* seconds ahead, and return once it answers."""
        server = self._server("--repl-diskless-sync", "no", *options, off_s=off_s)
        await until(lambda: server.ask("PING"))
        return server

    async def sentinel(self, name: str, primary: Server, at: int = 0) -> Server:
        """Start a sentinel that watches *primary*, known by the port *at* if given, alone: its voice is enough."""
        port, folder = free_port(), self._new_folder()
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\nlogfile log\n"
            f"sentinel monitor {name} 127.0.0.1 {at or primary.endpoint.port} 1\n"
            f"sentinel down-after-milliseconds {name} 300\nsentinel failover-timeout {name} 2000\n"
        )
        server = Server((self._binary, str(config), "--sentinel"), port, folder)
        self.servers.append(server)
        await until(lambda: server.ask("PING"))
        return server

    async def pair(self) -> tuple[Server, Server]:
        """A primary and its replica that tests share, started once, and empty."""
        if self._pair is None:
            self._pair = await self.server(), await self.server()
            await replicates(self._pair[1], self._pair[0])
        await self._pair[0].ask("FLUSHALL")
        return self._pair

    async def shared(self) -> "ClusterYard":
        """A cluster of three primaries with a replica each that tests share, started once, sound and empty."""
        self._shared = self._shared or await self.cluster(3, 3)
        await self._shared.emptied()
        return self._shared

    async def cluster(self, primaries: int = 3, replicas: int = 0, *options: str) -> "ClusterYard":
        """Start a cluster whose first primaries have a replica each."""
        count = primaries + replicas
        buses = [free_port() for _ in range(count)]
        servers = [self._server(*_clustered(bus), *options) for bus in buses]
        for number, server in enumerate(servers):
            await until(partial(server.ask, "PING"))
            await server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < primaries:
                low, high = (n * 16_384 // primaries for n in (number, number + 1))
                await server.ask("CLUSTER", "ADDSLOTSRANGE", low, high - 1)
        for server in servers[1:]:
            for other, bus in zip(servers, buses, strict=True):
                if other is not server:
                    await server.ask("CLUSTER", "MEET", "127.0.0.1", other.endpoint.port, bus)
        yard = ClusterYard(servers, primaries)
        for server in servers:
            await until(partial(_sound, server, count))
        for number in range(replicas):
            primary = (await servers[number].ask("CLUSTER", "MYID")).decode()
            await servers[primaries + number].ask("CLUSTER", "REPLICATE", primary)
        await yard.sound()
        return yard

    def _server(self, *options: str, off_s: int = 0) -> Server:
        port, folder = free_port(), self._new_folder()
        words = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), "--logfile", "log")
        server = Server((self._binary, *words, *options), port, folder, clocks.off_by(off_s))
        self.servers.append(server)
        return server

    def _new_folder(self) -> Path:
        folder = self._folder / str(len(self.servers))
        folder.mkdir()
        return folder


class ClusterYard:
    """The servers of a cluster."""

    def __init__(self, servers: Sequence[Server], primary_count: int) -> None:
        self.servers = servers
        self.primary_count = primary_count

    @property
    def seeds(self) -> tuple[Endpoint, ...]:
        return tuple(server.endpoint for server in self.servers)

    async def sound(self) -> None:
        """Wait until every server finds the cluster sound and knows all others, and every replica follows."""
        for server in self.servers:
            await until(partial(_sound, server, len(self.servers)))
        await until(self._settled)

    async def is_sound(self) -> bool:
        """Whether all that is so now."""
        for server in self.servers:
            if not await _sound(server, len(self.servers)):
                return False
        return await self._settled()

    async def moved(self, tag: str) -> Server:
        """Move the slot of *tag* to another primary, key by key, and return that."""
        slot = slot_of(tag)
        source, primaries = await self.owner(slot), await self.primaries()
        target = next(server for server in primaries if server is not source)
        ids = [(await server.told("CLUSTER", "MYID")).decode() for server in (source, target)]
        await target.told("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        await source.told("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        while found := await source.told("CLUSTER", "GETKEYSINSLOT", slot, 10):
            names = [key.decode() for key in found]
            await source.told("MIGRATE", "127.0.0.1", target.endpoint.port, "", 0, 1_000, "REPLACE", "KEYS", *names)
        for server in (target, source, *primaries):
            await server.told("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        return target

    async def _settled(self) -> bool:
        told = [await info(server.endpoint, "replication") for server in self.servers]
        roles = [one["role"] for one in told]
        linked = all(one["role"] == "master" or one["master_link_status"] == "up" for one in told)
        return roles.count("master") == self.primary_count and linked

    async def set(self, **settings: str) -> None:
        """Set the same everywhere."""
        for server in self.servers:
            await server.ask("CONFIG", "SET", *(word for pair in settings.items() for word in pair))

    async def emptied(self) -> None:
        """Take everything away."""
        async with anyio.create_task_group() as tasks:
            for server in self.servers:
                tasks.start_soon(_emptied, server)

    async def replica(self) -> tuple[Server, Server]:
        """A replica, and its primary."""
        for server in self.servers:
            told = await info(server.endpoint, "replication")
            if told["role"] == "slave":
                port = int(told["master_port"])
                return server, next(one for one in self.servers if one.endpoint.port == port)
        raise AssertionError("no server is a replica")

    async def owner(self, slot: int) -> Server:
        """The server that says itself that it serves *slot*."""
        for server in self.servers:
            if server.process.poll() is None:
                found = serving(await server.ask("CLUSTER", "SLOTS"), server.endpoint)[slot]
                return next(one for one in self.servers if found is not None and one.endpoint.port == found.port)
        raise AssertionError("no server lives")

    async def primaries(self) -> list[Server]:
        return [one for one in self.servers if (await info(one.endpoint, "replication"))["role"] == "master"]


async def _emptied(server: Server) -> None:
    with suppress(ReplyError):  # of a replica
        await server.ask("FLUSHALL")


async def _sound(server: Server, count: int) -> bool:
    text = (await server.ask("CLUSTER", "INFO")).decode()
    return "cluster_state:ok" in text and f"cluster_known_nodes:{count}" in text


async def _linked(server: Server) -> bool:
    return (await info(server.endpoint, "replication")).get("master_link_status") == "up"


def _clustered(bus: int) -> Sequence[str]:
    return (
        "--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", str(NODE_TIMEOUT_MS),
        "--repl-diskless-sync", "no", "--cluster-replica-validity-factor", "0",
        "--cluster-require-full-coverage", "no",
    )  # fmt: skip


async def replicates(replica: Server, primary: Server) -> None:
    """Make *replica* one of *primary*, and wait until it follows."""
    await replica.ask("REPLICAOF", "127.0.0.1", primary.endpoint.port)
    await until(lambda: _linked(replica))


def free_port() -> int:
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        port: int = plug.getsockname()[1]
        return port


@contextmanager
def open_yard(folder: Path, binary: str) -> Iterator[Yard]:
    yard = Yard(folder, binary)
    try:
        yield yard
    finally:
        for server in yard.servers:
            server.process.kill()
        for server in yard.servers:
            server.process.wait()
            clocks.tidy(server.process.pid)
