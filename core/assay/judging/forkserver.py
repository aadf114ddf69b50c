"""A preloaded process that forks workers in milliseconds and kills them with everything below them.

The root server is started once per pool as a fresh interpreter (`python -m assay.judging.forkserver FD`) and has
assay's contracts loaded. For every program it forks a *template*: a server of its own that has imported and built the
program, so that a worker is a fork away from being ready, and a plugin that spoils its process spoils no other's.

A server adopts the orphans below it and kills them; it ends, with everything below it, when its owner does. It runs
one thread and handles orders one by one.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

from assay.judging import channel, worker
from assay.process import become_subreaper, die_with_parent, kill_tree, reap


class Server:
    """Forks workers and templates on order, reports each one's end."""

    def __init__(self, orders: socket.socket, owner: int, program: worker.Program | None = None) -> None:
        """Serve orders that come on `orders`, for the process `owner`."""
        self.orders = orders
        self.program = program
        self.owner = os.pidfd_open(owner)
        self.running: dict[int, int] = {}
        """Process id to the id that the orders use."""
        self.wake, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _woken)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        become_subreaper()

    def run(self) -> None:
        """Serve until the owner is gone; nothing is left running afterwards."""
        gc.collect()
        gc.freeze()
        poll = select.poll()
        for file in (self.orders.fileno(), self.owner, self.wake):
            poll.register(file, select.POLLIN)
        try:
            while True:
                ready = {file for file, _ in poll.poll()}
                if self.owner in ready:
                    return
                if self.wake in ready:
                    _drain(self.wake)
                    self._collect()
                if self.orders.fileno() in ready:
                    received = channel.receive_order(self.orders)
                    if received is None:
                        return
                    self._obey(*received)
        except (BrokenPipeError, ConnectionResetError):
            return  # the owner went away while it was being told something
        finally:
            kill_tree(os.getpid(), root=False)
            reap()

    def _obey(self, order: dict[str, Any], files: list[int]) -> None:
        if order["op"] == "kill":
            for pid, name in self.running.items():
                if name == order["id"]:
                    kill_tree(pid)
            self._collect()
            return
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._close(files)
            channel.send_order(self.orders, {"ended": order["id"], "status": -1, "error": str(error)})
            return
        if pid:
            self._close(files)
            self.running[pid] = order["id"]
            channel.send_order(self.orders, {"started": order["id"], "pid": pid})
            return
        status = 1
        try:
            self._leave(parent)
            if order["op"] == "worker":
                sock, output = files
                worker.redirect(output)
                become_subreaper()
                worker.serve(sock, self.program)
            else:
                _serve_template(order, files, parent)
            status = 0
        except BaseException:  # a fork must never run on in its parent's code
            traceback.print_exc()
        finally:
            os._exit(status)

    def _leave(self, parent: int) -> None:
        """In a fork: drop everything that is the server's own."""
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for file in (self.owner, self.wake, self._wake_write):
            os.close(file)
        self.orders.close()
        os.setsid()

    def _collect(self) -> None:
        """Reap what has ended, report it, and kill what nobody owns any more."""
        ended = reap()
        for pid, status in ended.items():
            name = self.running.pop(pid, None)
            if name is not None:
                channel.send_order(self.orders, {"ended": name, "status": os.waitstatus_to_exitcode(status)})
        if ended:
            kill_tree(os.getpid(), root=False, keep=self.running)
            for pid, status in reap(keep=()).items():
                name = self.running.pop(pid, None)
                if name is not None:
                    channel.send_order(self.orders, {"ended": name, "status": os.waitstatus_to_exitcode(status)})

    def _close(self, files: list[int]) -> None:
        for file in files:
            os.close(file)


def _serve_template(order: dict[str, Any], files: list[int], parent: int) -> None:
    """Load the program, say what became of that, and serve as a fork server for it."""
    control, text, output = files
    worker.redirect(output)
    orders = socket.socket(fileno=control)
    with open(text, "rb") as file:
        wanted = json.loads(file.read())
    sockets = _sockets()
    try:
        program = worker.load(wanted["target"], wanted["init"])
    except BaseException as error:  # whatever the plugin raises is this load's answer
        traceback.print_exc()
        channel.send_order(orders, {"broken": worker.describe(error)[:4000]})
        return
    # Threads do not survive a fork and a shared connection would mix up its users: then each worker loads for itself.
    forkable = len(os.listdir("/proc/self/task")) == 1 and _sockets() <= sockets
    channel.send_order(orders, {"ready": forkable, "facts": program.facts})
    if forkable:
        sys.stdout.flush()
        sys.stderr.flush()
        Server(orders, parent, program).run()


def _sockets() -> frozenset[str]:
    """The open sockets and event queues of this process."""
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if link.startswith(("socket:", "anon_inode:")):
            found.add(link)
    return frozenset(found)


def _woken(_number: int, _frame: object) -> None:
    """Nothing: the wake-up file tells the loop."""


def _drain(file: int) -> None:
    try:
        while os.read(file, 4096):
            pass
    except BlockingIOError:
        return


def main() -> None:
    """Entry point of the root server: take the parent's import path, then serve."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    received = channel.receive_order(orders)
    if received is None:
        return
    sys.path[:] = received[0]["path"]
    for name in received[0]["preload"]:
        __import__(name)
    channel.send_order(orders, {"ready": True, "facts": {}})
    Server(orders, os.getppid()).run()


if __name__ == "__main__":
    main()
