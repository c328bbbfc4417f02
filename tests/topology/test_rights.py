"""The rights of docs/acl.md are enough on a cluster, with the two words that it adds (SPEC 52)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace import App, MissingRight
from tests.behaviour.test_acl import profile
from tests.support.lives import operate, produce, work
from tests.support.topologies import Cluster, every

ON_A_CLUSTER = ("+cluster|slots", "+asking")
MakeApp = Callable[..., App]


def grant(cluster: Cluster, words: list[str]) -> str:
    for member in cluster.members:
        member.ask("ACL", "SETUSER", "app", "reset", *words)
    return cluster.url.replace("://", "://app:secret@")


@pytest.mark.servers(*every("redis8"))
async def test_the_three_profiles_are_enough_on_a_cluster(cluster: Cluster, stream: str, make_app: MakeApp) -> None:
    app = make_app(grant(cluster, [*profile("producer", stream), *ON_A_CLUSTER]))
    await produce(app, stream)
    await app.close()
    cluster.sync().delete(stream)
    app = make_app(grant(cluster, [*profile("worker", stream), *ON_A_CLUSTER]))
    await work(cluster, app, stream)  # type: ignore[arg-type]
    await app.close()
    app = make_app(grant(cluster, [*profile("operator", stream), *ON_A_CLUSTER]))
    await operate(cluster, app, stream)  # type: ignore[arg-type]
    await app.close()


@pytest.mark.servers(*every("redis8"))
async def test_a_user_that_may_not_read_the_map_is_told_which_right_is_missing(
    cluster: Cluster, stream: str, make_app: MakeApp
) -> None:
    app = make_app(grant(cluster, profile("worker", stream)))
    with pytest.raises(MissingRight, match=r"(?i)cluster"):
        await app.stream(stream).add({"n": 1})
    await app.close()
