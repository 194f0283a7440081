"""The kernel's bandwidth for a text encoder, from fixed probe texts.

A bandwidth taken from the first batch would depend on that batch: a file learned at once and the
same file learned class by class would get different kernels, and models trained separately could
not be merged. The distance between unrelated sentences is a property of the encoder, so it is
measured on a fixed set of them.
"""

from __future__ import annotations

from klda.encoders.base import Encoder
from klda.engine.feature_map import GAMMA_SCALE, median_squared_distance

# Unrelated texts of different lengths and kinds: requests, questions, statements, headlines.
PROBE_TEXTS = (
    "where is my parcel?",
    "I'd like to change the address on my account",
    "what time does the museum open on Sundays",
    "cancel my subscription",
    "The river rises in the northern hills and flows two hundred kilometres to the sea.",
    "how many calories are in a bowl of porridge",
    "my phone won't charge any more",
    "Parliament passes the budget after a long night of debate",
    "turn the volume down",
    "She is a retired tennis player who won three doubles titles.",
    "is there parking near the stadium?",
    "the soup was cold and the waiter forgot our drinks",
    "how do I reset my password",
    "remind me to water the plants tomorrow morning",
    "A species of beetle in the family Cerambycidae, described in 1887.",
    "what's the exchange rate between the euro and the yen",
    "great value, the shoes fit perfectly",
    "who painted the ceiling of the chapel?",
    "The company makes pumps and valves for the chemical industry.",
    "my flight was delayed by four hours",
    "can I pay in instalments?",
    "Scientists measure the mass of a distant star",
    "will it rain this afternoon",
    "I was charged twice for the same order",
    "The album was recorded in a barn over the course of one summer.",
    "which bus goes to the harbour",
    "my knee hurts when I climb stairs",
    "send the report to the whole team",
    "It is a small village in the district of the same name, with 412 inhabitants.",
    "how old do you have to be to vote",
    "the printer is out of paper again",
    "Striker signs a three-year contract",
    "what does this error message mean?",
    "tell me a story about a dragon",
    "the plot was thin but the acting was superb",
    "do you deliver to islands?",
    "how long should I roast a chicken",
    "The bridge, opened in 1931, carries road and rail traffic.",
    "I forgot to attach the invoice",
    "which gift would suit a nine-year-old",
)


def gamma_for(encoder: Encoder) -> float:
    """Return the kernel's ``gamma`` for the features of a text encoder."""
    scale = getattr(encoder, "gamma_scale", GAMMA_SCALE)
    gamma = scale / median_squared_distance(encoder.encode(list(PROBE_TEXTS)))
    # Rounded, so that another machine or half precision gives the same value.
    return float(f"{gamma:.2g}")
