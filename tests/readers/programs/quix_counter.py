"""Quix Streams: counts facts by key in a state store with a changelog topic. Probes ask for the state of a key.

Quix has no way to look at a state store but in the function that processes a record of the key. So the state is asked
for by records that count nothing: one for each key, whose answers are what the application would go on with.
"""

from __future__ import annotations

import time
from typing import Any

from job import Stopwatch, facts, load_job, tell
from quixstreams import Application, State

_JOB = load_job()
_KEYS = [f"key-{number:02d}" for number in range(40)]
_LIMIT_S = 20.0


def _send(app: Application, topic: Any, bodies: list[tuple[str, dict[str, Any]]]) -> None:
    with app.get_producer() as producer:
        for key, body in bodies:
            message = topic.serialize(key=key, value=body)
            producer.produce(topic.name, key=message.key, value=message.value)


def main() -> None:
    watch = Stopwatch()
    app = Application(
        broker_address=_JOB.bootstrap,
        consumer_group=_JOB.name,
        auto_offset_reset="earliest",
        state_dir=_JOB.folder,
        topic_create_timeout=20,
        commit_every=20,  # each commit writes changed keys to the changelog
    )
    topic = app.topic(f"{_JOB.name}-input", key_deserializer="str", value_deserializer="json")
    probe = str(time.time_ns())
    answers: dict[str, list[int]] = {}

    def count(body: dict[str, Any], key: str, state: State) -> None:
        found = state.get("found", [0, 0])
        if "number" in body:
            state.set("found", [found[0] + 1, found[1] + body["number"]])
        elif body["probe"] == probe:
            answers[key] = found
            if len(answers) == len(_KEYS):
                app.stop()

    sdf = app.dataframe(topic)
    sdf.apply(lambda body, key, _, __: (body, key), metadata=True).apply(
        lambda pair, state: count(pair[0], pair[1], state), stateful=True
    )
    if _JOB.phase == "write":
        _send(app, topic, [(fact.key, {"number": fact.number}) for fact in facts(_JOB)])
    _send(app, topic, [(key, {"probe": probe}) for key in _KEYS])
    app.run(timeout=_LIMIT_S)
    done = len(answers) == len(_KEYS)
    tell(_JOB.phase, watch.seconds if done else None, answers)


main()
