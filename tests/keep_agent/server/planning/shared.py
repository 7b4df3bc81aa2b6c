"""Settings, facts and tokens that tests of planning agents on a server share."""

from __future__ import annotations

from envs.fact import Fact
from keep_agent.server.auth.tokens import Access, Entry, Tokens, digest
from keep_agent.server.settings import Settings
from tests.keep_agent.server.serving import patient

SKILLS = ["go to cabinet 1", "open cabinet 1", "done"]
MUG = Fact("mug_1", "object", "mug", "cabinet_1")
OPEN = Tokens(open=True)
SETTINGS = Settings(limits=patient(Settings().limits), viewer=False)
KITCHEN, ALL = "token-of-the-kitchen", "token-of-everybody"
SCOPED = Tokens((Entry(Access("kitchen", frozenset({"kitchen"})), digest(KITCHEN)), Entry(Access("all"), digest(ALL))))
