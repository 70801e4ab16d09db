"""A real pair on a real broker and S3 server, led through its turns; what its pages show on the way.

The states are made as they come about: turns that were asked for, a pause, an Active that was killed, a slow reading,
an Active that was stopped while records it had not read were deleted, a producer that never ends its transaction.
"""

from __future__ import annotations

import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.clusters.topic_config import set_config
from support.pairs.instances import Instance, Pair, store_section

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.sigv4 import S3Key

TOPICS: Final = {"customers": 6, "orders": 12, "prices": 4, "prices-2019": 2, "_schemas": 1}
_RECORDS: Final = 4000
_KEYS: Final = 1500
_PATIENCE_S: Final = 400.0
_CONFIG: Final = {"segment.ms": "600000", "retention.ms": "-1", "cleanup.policy": "compact"}


class Scene:
    """The servers, the pair and a writer that never rests. Use it in a `with`."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._stack = ExitStack()
        self._ports = dict(zip("ab", pick_ports(2), strict=True))
        self._quiet = threading.Event()
        self._instances: dict[str, Instance] = {}

    def __enter__(self) -> Self:
        """Start the servers, fill the topics."""
        kafka = KafkaServer(self._folder / "kafka")
        s3 = S3Server(self._folder / "s3", bucket="backup", key=S3Key(access_key="screenshots", secret_key="s" * 24))
        for server in (kafka, s3):
            self._stack.callback(server.stop)
            server.start()
        self.bootstrap = kafka.bootstrap
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        made = self._admin.create_topics([NewTopic(name, count, 1, config=_CONFIG) for name, count in TOPICS.items()])
        for future in made.values():
            future.result(30)
        self._produce(_RECORDS)
        self.pair = self._stack.enter_context(
            Pair(
                self._folder,
                bootstrap=kafka.bootstrap,
                store=store_section("s3://backup/prod", s3),
                topics={"include": list(TOPICS)},
                flush={"interval": "2s"},
            )
        )
        self.pair.name = "shop"
        self.pair.settings |= {"pair": "shop"}
        self._stack.callback(self._quiet.set)
        threading.Thread(target=self._write, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all of it."""
        self._stack.close()

    def states(self) -> Iterator[tuple[str, str, Callable[[], str]]]:
        """Yield each state as (name, address of the page that shows it, what returns the page), in time to see it."""
        self._start("a", peer={"timeout": "10m"})  # it stays as it is when b is gone, until it was photographed
        self._start("b")
        self._wait("generation 1 is complete", lambda: self.pair.complete(1))
        time.sleep(15)
        self._hand_over(2)
        self._say("verifying and rehearsing")
        self._tandem("verify")
        self._tandem("drill")
        self._hand_over(3)
        time.sleep(10)
        yield self._shown("steady", "a")
        self._tandem("pause", "--for", "2h", "--reason", "brokers are replaced")
        self._wait("a knows of the pause", lambda: "brokers are replaced" in self._page("a"))
        yield self._shown("paused", "a")
        self._tandem("resume")
        self._instances["a"].kill()
        self._wait("b has taken over", lambda: self.pair.complete(4))
        self._wait("a is missed", lambda: "silent for" in self._page("b"))
        yield self._shown("killed", "b")
        self._start("a", peer={"timeout": "10m"})
        self._wait("generation 3 is cleared", lambda: self._gone(3))
        self._hand_over(5)
        self._start("b", scan={"rate_limit": "64KiB"})
        self._ask()
        self._wait("b reads", lambda: self.pair.generation(6) is not None)
        time.sleep(12)
        yield self._shown("catch-up", "b")
        self._start("b")
        self._wait("generation 6 is complete", lambda: self.pair.complete(6))
        self._wait("generation 5 is cleared", lambda: self._gone(5))
        self._admin.delete_topics(["prices-2019"])["prices-2019"].result(30)
        time.sleep(12)
        self._ask()
        self._wait("generation 7 is complete", lambda: self.pair.complete(7))
        self._wait("generation 6 is cleared in part", lambda: self._kept(6))
        with self._taint():
            yield self._shown("tainted", "a")

    def _wait(self, what: str, done: Callable[[], object]) -> None:
        self.pair.wait(what, done, timeout_s=_PATIENCE_S)

    # --- what happens -----------------------------------------------------------------------------------------------

    def _start(self, name: str, **sections: Any) -> None:
        if name in self._instances:
            self._instances[name].terminate()
        self._instances[name] = self.pair.start(name, http={"listen": f"{LOOPBACK}:{self._ports[name]}"}, **sections)
        self._wait(f"{name} answers", lambda: self._answers(name))

    def _answers(self, name: str) -> bool:
        try:
            return "The two instances" in self._page(name)
        except OSError:
            return False

    def _ask(self) -> None:
        self._tandem("failover", "--yes", "--no-wait", "--reason", "rotation")

    def _hand_over(self, number: int) -> None:
        self._say(f"handing over to generation {number}")
        self._ask()
        self._wait(f"generation {number} is complete", lambda: self.pair.complete(number))
        self._wait(f"generation {number - 1} is cleared", lambda: self._gone(number - 1))
        time.sleep(8)

    def _tandem(self, *arguments: str) -> None:
        code = self.pair.begin(*arguments).wait(_PATIENCE_S)
        assert code == 0, (self._folder / "command.log").read_text("utf-8")[-2000:]

    def _gone(self, number: int) -> bool:
        found = self.pair.generation(number)
        return found is not None and found.gone

    def _kept(self, number: int) -> bool:
        found = self.pair.generation(number)
        return found is not None and found.cleared is not None and not found.gone

    @contextmanager
    def _taint(self) -> Iterator[None]:
        """Have records deleted before the Active reads them, its peer gone and a transaction hanging."""
        self._instances["b"].kill()
        hanging = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": "gone", "transaction.timeout.ms": 900_000}
        )
        hanging.init_transactions(30)
        hanging.begin_transaction()
        hanging.produce("customers", key="customer-7", value="never committed", partition=2)
        hanging.flush(30)
        active = self._instances["a"]
        active.process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        self._produce(600, topics=("orders",))
        # Brokers refuse to delete records from a topic that is compacted and nothing else.
        set_config(self.bootstrap, "orders", {"cleanup.policy": "compact,delete"})
        places = [TopicPartition("orders", n, -1) for n in (3, 8)]  # -1: all there is
        for future in self._admin.delete_records(places).values():
            future.result(30)
        set_config(self.bootstrap, "orders", {"cleanup.policy": "compact"})
        active.process.send_signal(signal.SIGCONT)
        self._wait("it is tainted", lambda: active.said("tainted"))
        self._wait("b is missed", lambda: "silent for" in self._page("a"))
        yield

    def _shown(self, state: str, name: str) -> tuple[str, str, Callable[[], str]]:
        self._page(name)
        time.sleep(6)  # what is looked up for a page is known to the next one
        return state, f"http://{LOOPBACK}:{self._ports[name]}/", lambda: self._page(name)

    def _page(self, name: str) -> str:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self._ports[name]}/", timeout=20) as answer:
            return str(answer.read().decode())

    # --- records ----------------------------------------------------------------------------------------------------

    def _produce(self, count: int, topics: tuple[str, ...] = tuple(TOPICS)) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 50})
        for topic in topics:
            for number in range(count):
                producer.produce(topic, key=f"{topic}-{number % _KEYS}", value=f"{number:0300d}")
            producer.flush(30)

    def _write(self) -> None:
        while not self._quiet.wait(0.5):
            self._produce(20, topics=("customers", "orders", "prices"))
