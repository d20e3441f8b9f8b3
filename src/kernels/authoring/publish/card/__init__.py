"""The card of a published kernel: what the Hub shows as its page, filled in from the builds."""

from __future__ import annotations

from kernels.authoring.publish.card.card import Card, PublishedCards, make_card
from kernels.authoring.publish.card.facts import CardFacts, read_facts
from kernels.authoring.publish.local_builds import CARD_FILE, TEMPLATE_FILE

__all__ = ["CARD_FILE", "TEMPLATE_FILE", "Card", "CardFacts", "PublishedCards", "make_card", "read_facts"]
