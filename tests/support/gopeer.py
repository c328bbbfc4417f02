"""A pod that behaves as redis-stream-client-go does: the same commands in the same order, with the same races.

Written from reading its sources, and held against what a Go process sent (tests/behaviour/go_frames.json): the same
words in the same order, but for the handshake of a connection. As a process:

    POD_NAME=go-1 python -m tests.support.gopeer '{"url": ..., "service": ..., "hb_ms": 2000, ...}'

It writes one JSON object a line to stdout ({"event": "added", "stream": ..., "id": ...}) and obeys lines on stdin:
"done <stream>", "claim <id>", "quit" (the Go client's Done).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import redis

SEPARATOR = "<MUTEX_KEY_SEP>"
TRIES = 32  # redsync's, for a lock that somebody has
FRAMES = json.loads((Path(__file__).parents[1] / "behaviour" / "go_frames.json").read_text())


def _script(argument: str) -> str:
    """The text of redsync's script that names it, from the recording: its digest is of every byte."""
    sent: list[list[str]] = [frame["send"].split("\r\n") for frame in FRAMES["finishes"]]
    return next(words[4] for words in sent if words[2] == "eval" and argument in words[4])


EXTEND = _script("PEXPIRE")  # or SET NX: who finds the key gone makes it again
UNLOCK = _script("DEL")


def _connected(url: str) -> Any:
    """A client of redis-py that hands replies out raw, to one node or to a cluster."""
    if not url.startswith("redis+cluster:"):
        client = redis.Redis.from_url(url, decode_responses=True, protocol=2, socket_timeout=None)
        client.response_callbacks.clear()
        return client
    first = url.replace("redis+cluster:", "redis:").partition(",")[0]
    cluster = redis.RedisCluster.from_url(first, decode_responses=True, protocol=2, socket_timeout=None)
    for node in cluster.get_nodes():  # type: ignore[no-untyped-call]
        cluster.get_redis_connection(node).response_callbacks.clear()
    return cluster


def in_any_order(fields: dict[str, str]) -> list[str]:
    """The fields of a copy are a map in Go, and every walk over it has another order."""
    pairs = random.sample(list(fields.items()), len(fields))
    return [word for pair in pairs for word in pair]


class GoPeer:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.url = settings["url"]
        self.clustered = self.url.startswith("redis+cluster:")
        self.service = settings["service"]
        self.lbs, self.group = f"{self.service}-input", f"{self.service}-group"
        self.hb_ms = settings.get("hb_ms", 2_000)
        self.interval_s = settings.get("interval_ms", 60_000) / 1000
        self.min_idle_ms = settings.get("min_idle_ms", 30_000)
        self.batch = settings.get("batch", 50)
        self.max_retries = settings.get("max_retries", 3)
        self.consumer = "redis-consumer-" + os.environ["POD_NAME"]
        self.client = _connected(settings["url"])
        self.locks: dict[str, str] = {}  # data stream -> id: a map by name, as theirs is
        self.stopping = threading.Event()

    def send(self, *words: Any) -> Any:
        return self.client.execute_command(*words)

    def run(self, script: str, key: str, *words: Any) -> Any:
        """As redsync does: by its digest, and by its text if the server does not know it."""
        try:
            return self.send("evalsha", hashlib.sha1(script.encode()).hexdigest(), 1, key, *words)
        except redis.exceptions.NoScriptError:
            return self.send("eval", script, 1, key, *words)

    def tell(self, event: str, **about: Any) -> None:
        # one write a line: threads that print at once would run their lines together
        sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **about}) + "\n")
        sys.stdout.flush()

    def lock_key(self, stream: str, id_: str) -> str:
        return f"{stream}{SEPARATOR}{id_}"

    # ── Init ──

    def start(self, force: bool) -> None:
        if not self.clustered:  # there it does the same at every master
            _, existing = self.send("config", "get", "notify-keyspace-events")
            if existing and not force:
                raise SystemExit("existing configuration detected without force override option")
            self.send("config", "set", "notify-keyspace-events", "KEx")
            self.subscribe()
        try:
            self.send("xgroup", "create", self.lbs, self.group, "$", "mkstream")
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        for work in (self.read, self.reconcile_loop):
            threading.Thread(target=work, daemon=True).start()

    def subscribe(self) -> None:
        connection: Any = _connected(self.url).connection_pool.get_connection()
        connection.send_command("psubscribe", f"__keyspace@0__:*{SEPARATOR}*")
        threading.Thread(target=self.listen, args=(connection,), daemon=True).start()

    def listen(self, connection: Any) -> None:
        while True:
            kind, *_, channel, said = connection.read_response()
            if kind == "pmessage" and said == "expired":
                stream, _, id_ = channel.removeprefix("__keyspace@0__:").partition(SEPARATOR)
                self.tell("expired", stream=stream, id=id_)

    def read(self) -> None:
        while not self.stopping.is_set():
            reply = self.send("xreadgroup", "group", self.group, self.consumer, "block", 0, "streams", self.lbs, ">")
            for _, messages in reply or []:
                for id_, fields in messages:
                    if not self.take(id_, dict(zip(fields[::2], fields[1::2], strict=True))):
                        self.tell("terminated", reason="fatal error while processing lbs messages")
                        return

    def take(self, id_: str, values: dict[str, str]) -> bool:
        try:
            told = json.loads(values["lbs-input"])
            stream = told["DataStreamName"]
        except (KeyError, ValueError):
            return False
        key = self.lock_key(stream, id_)
        for _ in range(TRIES):
            if self.send("set", key, self.consumer, *self.expiry(), "nx"):
                break
            self.run(UNLOCK, key, self.consumer)
            time.sleep(0.01)
        else:
            return False
        self.locks[stream] = id_
        self.tell("added", stream=stream, id=id_, info=told.get("Info"), retries=values.get("_retry_count", "0"))
        threading.Thread(target=self.extend, args=(stream, id_), daemon=True).start()
        return True

    def expiry(self) -> tuple[str, int]:
        return ("px", self.hb_ms) if self.hb_ms % 1_000 else ("ex", self.hb_ms // 1_000)

    def extend(self, stream: str, id_: str) -> None:
        while not self.stopping.is_set():
            if stream not in self.locks:
                return
            if not self.run(EXTEND, self.lock_key(stream, id_), self.consumer, self.hb_ms):
                self.locks.pop(stream, None)
                self.tell("disowned", stream=stream, id=id_)
                return
            time.sleep(self.hb_ms / 2_000)

    # ── recovery ──

    def reconcile_loop(self) -> None:
        while not self.stopping.is_set():
            rows = self.send("xpending", self.lbs, self.group, "idle", self.min_idle_ms, "-", "+", self.batch)
            for id_, *_ in rows:
                outcome = self.requeue(id_)
                if outcome != "lost race":
                    self.tell(outcome, id=id_)
            self.stopping.wait(self.interval_s * (1 + 0.1 * random.random()))

    def requeue(self, id_: str) -> str:
        found = self.send("xrange", self.lbs, id_, id_)
        if not found:
            self.send("xack", self.lbs, self.group, id_)
            return "lost race"
        values = dict(zip(found[0][1][::2], found[0][1][1::2], strict=True))
        retries = int(values["_retry_count"]) if values.get("_retry_count", "").isdigit() else 0
        try:
            stream = json.loads(values["lbs-input"])["DataStreamName"]
        except (KeyError, ValueError):
            return self.bury(id_, values, retries, "unparseable")
        if self.send("exists", self.lock_key(stream, id_)):
            return "skipped"
        if retries + 1 > self.max_retries:
            return self.bury(id_, values, retries + 1, "max_retries_exceeded")
        if not self.send("xack", self.lbs, self.group, id_):
            return "lost race"
        self.send("xadd", self.lbs, "*", *in_any_order({**values, "_retry_count": str(retries + 1)}))
        self.send("xdel", self.lbs, id_)
        return "requeued"

    def bury(self, id_: str, values: dict[str, str], retries: int, reason: str) -> str:
        if not self.send("xack", self.lbs, self.group, id_):
            return "lost race"
        fields = {**values, "_retry_count": str(retries), "_dlq_reason": reason}
        self.send("xadd", f"{self.lbs}-dlq", "maxlen", "~", 10_000, "*", *in_any_order(fields))
        self.send("xdel", self.lbs, id_)
        return "buried"

    # ── DoneStream, Done ──

    def done_stream(self, stream: str) -> None:
        id_ = self.locks.pop(stream, None)
        if id_ is None:
            self.tell("error", reason="data stream not found")
            return
        self.send("xack", self.lbs, self.group, id_)
        self.send("xdel", self.lbs, id_)
        self.run(UNLOCK, self.lock_key(stream, id_), self.consumer)
        self.tell("done", stream=stream, id=id_)

    def done(self) -> None:
        for stream in list(self.locks):
            self.done_stream(stream)
        self.stopping.set()


def main() -> None:
    settings = json.loads(sys.argv[1])
    peer = GoPeer(settings)
    peer.start(settings.get("force", True))
    peer.tell("ready")
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "done":
            peer.done_stream(rest)
        elif word == "claim":
            peer.tell("claimed", id=rest, outcome=peer.requeue(rest))
        elif word == "quit":
            peer.done()
            return


if __name__ == "__main__":
    main()
