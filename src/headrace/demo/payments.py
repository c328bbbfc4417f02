"""Synthetic payments, the same ones for the same seed: good ones, and the kinds of trouble a real stream brings.

    payments(20_000)      the payments alone, in the order of their creation
    sendings(20_000)      what a producer sends: the payments as JSON, some of them twice, some spoilt

Pure: no clock, no file, no global randomness. Every value is made up.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec

SEED: Final = 20_260
FIRST_DAY: Final = datetime(2026, 3, 2, tzinfo=UTC)
NO_RATE: Final = "XTS"  # ISO 4217 keeps this code for tests: nobody has an exchange rate for it
LETHAL_CHANNEL: Final = "fax"  # the one channel whose reader crashes

# merchant, its country, how often it is seen, its typical amount
_MERCHANTS: Final = (
    ("corner-bakery", "DE", 16, 7.0),
    ("metro-tickets", "FR", 14, 3.2),
    ("night-pharmacy", "ES", 9, 18.0),
    ("green-grocer", "NL", 12, 32.0),
    ("book-harbour", "GB", 8, 24.0),
    ("cloud-hosting", "IE", 7, 96.0),
    ("bike-workshop", "DK", 5, 140.0),
    ("sky-travel", "CH", 4, 410.0),
    ("old-camera", "US", 3, 260.0),
    ("piano-house", "AT", 1, 1_900.0),
)
_CURRENCY_OF: Final = {"GB": "GBP", "CH": "CHF", "DK": "DKK", "US": "USD"}  # elsewhere: EUR
_COUNTRIES: Final = (("DE", 20), ("FR", 18), ("GB", 14), ("ES", 12), ("NL", 10), ("CH", 8), ("US", 8), ("JP", 6))
_CHANNELS: Final = (("card", 46), ("wallet", 30), ("web", 20), ("phone", 4))
# payments by hour of the day: quiet nights, a noon and an evening peak
_BY_HOUR: Final = (1, 1, 1, 1, 1, 2, 4, 7, 9, 9, 9, 11, 14, 12, 9, 8, 9, 12, 15, 14, 10, 6, 3, 2)


@dataclass(frozen=True, slots=True)
class Payment:
    """One card payment. ``score`` is how suspicious it looks, from 0 to 1."""

    id: str
    created: str  # ISO 8601, UTC
    merchant: str
    merchant_country: str
    card_country: str
    amount: float  # with two decimals
    currency: str
    channel: str
    score: float

    @property
    def cents(self) -> int:
        """The amount as a whole number, for sums that must be exact."""
        return round(self.amount * 100)


def payments(count: int, seed: int = SEED) -> Iterator[Payment]:
    """So many payments of one day, in the order of their creation."""
    rng = random.Random(seed)
    hours = sorted(rng.choices(range(24), weights=_BY_HOUR, k=count))
    moments = sorted(FIRST_DAY + timedelta(hours=hour, seconds=rng.uniform(0, 3_600)) for hour in hours)
    for number, created in enumerate(moments):
        yield _payment(f"pay-{number:06d}", created, rng)


def _payment(id_: str, created: datetime, rng: random.Random) -> Payment:
    (merchant, country, _, typical) = rng.choices(_MERCHANTS, weights=[row[2] for row in _MERCHANTS])[0]
    at_home = rng.random() < 0.8
    card_country = country if at_home else _drawn(_COUNTRIES, rng)
    amount = round(max(0.5, typical * rng.lognormvariate(0.0, 0.6)), 2)
    channel = _drawn(_CHANNELS, rng)
    doubt = 0.03 + 0.12 * (card_country != country) + 0.1 * (created.hour < 5) + 0.15 * (amount > 4 * typical)
    score = round(min(1.0, rng.betavariate(1.2, 9.0) + doubt * rng.random() * 5), 4)
    return Payment(
        id=id_,
        created=created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        merchant=merchant,
        merchant_country=country,
        card_country=card_country,
        amount=amount,
        currency=_CURRENCY_OF.get(country, "EUR"),
        channel=channel,
        score=score,
    )


def _drawn(weighted: tuple[tuple[str, int], ...], rng: random.Random) -> str:
    return rng.choices([word for word, _ in weighted], weights=[weight for _, weight in weighted])[0]


# ── what a producer sends ──

Kind = Literal["good", "repeat", "undecodable", "poison", "lethal"]


@dataclass(frozen=True, slots=True)
class Sending:
    """One add: the key it is sent under, its bytes, and what is wrong with it.

    A ``repeat`` has the key of an earlier one and must not be added again. ``undecodable`` bytes are no payment;
    ``poison`` is one that every handler fails at, and ``lethal`` one that kills the process of its handler.
    """

    key: str
    body: bytes
    kind: Kind
    payment: Payment | None = None


def sendings(
    count: int,
    seed: int = SEED,
    *,
    repeats: float = 0.02,
    undecodable: float = 0.002,
    poison: float = 0.001,
    lethal: int = 1,
) -> list[Sending]:
    """``count`` different payments as they are sent, and the share of them that is sent twice on top.

    At least one of each kind of trouble, if its share is above 0. The lethal ones come late, after three quarters.
    """
    rng = random.Random(seed + 1)
    kinds = _kinds(count, rng, {"undecodable": undecodable, "poison": poison}, lethal)
    once = [_sending(payment, kind, rng) for payment, kind in zip(payments(count, seed), kinds, strict=True)]
    behind: dict[int, list[Sending]] = {}
    for first in rng.sample(range(count), _share(count, repeats)):
        place = min(count - 1, first + rng.randint(1, 500))  # a retry soon after
        behind.setdefault(place, []).append(replace(once[first], kind="repeat"))
    return [sent for at, sending in enumerate(once) for sent in (sending, *behind.get(at, ()))]


def _kinds(count: int, rng: random.Random, shares: dict[Kind, float], lethal: int) -> list[Kind]:
    kinds: list[Kind] = ["good"] * count
    troubled = rng.sample(range(count * 3 // 4), sum(_share(count, share) for share in shares.values()))
    for kind, share in shares.items():
        for _ in range(_share(count, share)):
            kinds[troubled.pop()] = kind
    for number in range(lethal):
        kinds[count * 3 // 4 + number * max(1, count // 50)] = "lethal"
    return kinds


def _share(count: int, share: float) -> int:
    return max(1, round(count * share)) if share > 0 else 0


def _sending(payment: Payment, kind: Kind, rng: random.Random) -> Sending:
    if kind == "poison":
        payment = replace(payment, currency=NO_RATE)
    elif kind == "lethal":
        payment = replace(payment, channel=LETHAL_CHANNEL)
    body = msgspec.json.encode(payment)
    if kind == "undecodable":
        return Sending(payment.id, _spoilt(body, rng), kind)
    return Sending(payment.id, body, kind, payment)


def _spoilt(body: bytes, rng: random.Random) -> bytes:
    """Bytes that are no payment any more: cut, of another type, without a field, or no text at all."""
    way = rng.randrange(4)
    if way == 0:
        return body[: rng.randrange(1, len(body) - 1)]
    if way == 1:
        return body.replace(b'"amount":', b'"amount":"about ').replace(b',"currency"', b'","currency"')
    if way == 2:
        return body.replace(b'"merchant"', b'"shop"')
    return b"\xff\xfe" + body
