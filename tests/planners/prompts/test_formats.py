from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast as Tokens

from keep_agent.errors import ConfigError, ModelError
from planners.prompts.formats import Example, LotaFormat, PlainFormat, Splicer, make_format
from planners.prompts.text import Turn
from planners.tiny.tokenizer import BOS, PAD, UNK, train_tokenizer

TURNS = [Turn("find a mug"), Turn("open the Fridge", False, "Cannot find Fridge to open")]


@pytest.fixture(scope="module")
def tiny() -> Tokens:
    names = [f"{kind}_{number}" for kind in ("mug", "cabinet") for number in range(1, 22)]
    texts = ["task lota grounded next failed find a mug open the fridge put cabinet cannot to pick up\n"] * 5
    inner = train_tokenizer(texts, names, 400)
    return Tokens(tokenizer_object=inner, bos_token=BOS, pad_token=PAD, unk_token=UNK)


def test_golden_plain_query(tiny: Tokens) -> None:
    text = tiny.decode(PlainFormat(tiny).query("lota", "Open the\nFridge", TURNS))
    turns = "next find a mug \n next open the fridge \n failed cannot find fridge to open"
    assert text == f"task lota open the fridge \n {turns} \n next"


def test_the_agents_own_line_precedes_the_cue(tiny: Tokens) -> None:
    form, agent_line = PlainFormat(tiny), "mug cabinet_2\n"
    query = tiny.decode(form.query("lota", "Find a mug", TURNS[:1], agent_line))
    assert query == "task lota find a mug \n next find a mug \n mug cabinet_2 \n next"
    assert tiny.decode(form.cue("lota", 2, agent_line)) == "mug cabinet_2 \n next"


def test_a_focus_precedes_an_instance_level_skill(tiny: Tokens) -> None:
    form = PlainFormat(tiny)
    assert (form.focus("lota"), form.focus("grounded")) == (0, 3)
    focus = form.line("mug mug_1 cabinet_2")
    turn = Turn("open the cabinet 2")
    assert tiny.decode(form.answer("grounded", turn, focus)) == "mug mug_1 cabinet_2 open the cabinet_2 \n"


def test_a_focus_can_have_a_line_of_its_own(chat: Tokens) -> None:
    form, focus = PlainFormat(chat, focus="line"), chat.encode(" mug mug_1 cabinet_2")
    assert form.focus("grounded") > len(focus) and form.focus("lota") == 0
    query, turn = form.query("grounded", "Find a mug", []), Turn("open cabinet 2")
    assert chat.decode(query) == "task grounded find a mug\ntarget"
    decided = query + form.answer("grounded", turn, focus)
    assert chat.decode(decided) == "task grounded find a mug\ntarget mug mug_1 cabinet_2\nnext open cabinet_2\n"
    after = [*query, *focus, *form.after_focus("grounded")]
    assert decided == [*after, *form.candidate("open cabinet 2")]
    assert chat.decode(form.query("lota", "Find a mug", [])) == "task lota find a mug\nnext"
    none = PlainFormat(chat, focus="none")
    assert none.focus("grounded") == 0 and chat.decode(none.query("grounded", "Find a mug", [])).endswith("\nnext")
    with pytest.raises(ConfigError, match="prompt.focus"):
        PlainFormat(chat, focus="two")


def test_golden_lota_prompt(chat: Tokens) -> None:
    form = LotaFormat(chat, [Example("Get a mug.", ("find a mug", "pick up the mug", "done"))])
    context, query = chat.decode(form.context()), chat.decode(form.query("lota", "Cool a mug", TURNS))
    assert context.startswith("<|im_start|>user\nYou control a robot in a household.")
    assert context.endswith("Human: get a mug.\nRobot: 1. find a mug, 2. pick up the mug, 3. done.\nKnown facts:\n")
    assert query == (
        "Human: cool a mug<|im_end|>\n<|im_start|>assistant\nRobot: 1. find a mug,"
        " 2. open the Fridge (this action failed: cannot find fridge to open), 3."
    )
    assert chat.decode(form.candidate("find a mug")) == " find a mug," and form.focus("grounded") == 0


def test_a_failure_without_a_message_is_stated_in_every_format(tiny: Tokens, chat: Tokens) -> None:
    silent = Turn("open the Fridge", ok=False)
    answer = chat.decode(LotaFormat(chat).answer("lota", silent))
    assert answer == " open the Fridge (this action failed: it did not work),"
    assert "failed it did not work" in tiny.decode(PlainFormat(tiny).answer("lota", silent))


def test_golden_lota_transcript_of_two_tasks(chat: Tokens) -> None:
    form = LotaFormat(chat)
    ids = form.opening("lota", "Get a mug") + form.cue("lota", 1) + form.answer("lota", Turn("find a mug"))
    ids += form.opening("lota", "Cool it", after_task=True) + form.cue("lota", 1)
    assert chat.decode(ids) == (
        "Human: get a mug<|im_end|>\n<|im_start|>assistant\nRobot: 1. find a mug,<|im_end|>\n"
        "<|im_start|>user\nHuman: cool it<|im_end|>\n<|im_start|>assistant\nRobot: 1."
    )


def test_instances_are_single_tokens_and_words_have_one_id_everywhere(tiny: Tokens) -> None:
    form = PlainFormat(tiny)
    assert form.line("mug mug_21\n")[1] == tiny.convert_tokens_to_ids("mug_21")
    assert form.candidate("put mug 2 in cabinet 21")[1] == tiny.convert_tokens_to_ids("mug_2")
    assert form.line("mug\n")[0] == form.line("a mug\n")[1] and form.context() == [tiny.bos_token_id]


@pytest.mark.parametrize("name", ["tiny", "chat"])
def test_every_line_ends_with_its_own_newline_token(name: str, request: pytest.FixtureRequest) -> None:
    splice = Splicer(request.getfixturevalue(name))
    lines = ["mug mug_1 cabinet_2.\n", "\n", "find it:\n"]
    whole = splice.lines("".join(lines))
    assert whole == [token for line in lines for token in splice.lines(line)]
    assert whole.count(splice.newline) == 3


@pytest.mark.parametrize("name", ["default", "lota"])
def test_a_transcript_has_the_same_ids_as_the_rebuilt_query(name: str, chat: Tokens) -> None:
    form = make_format(name, chat)
    appended = form.opening("lota", "cool a mug")
    for number, turn in enumerate(TURNS, 1):
        appended += form.cue("lota", number) + form.answer("lota", turn)
    assert appended + form.cue("lota", 3) == form.query("lota", "cool a mug", TURNS)


def test_the_agents_own_line_is_a_separate_line(chat: Tokens) -> None:
    form, agent_line = make_format("lota", chat), "agent at fridge_1\n"
    turn = [*form.cue("lota", 1), *form.answer("lota", TURNS[0])]
    text = chat.decode([*form.opening("lota", "cool a mug", agent_line), *turn])
    assert text.startswith(f"{agent_line}Human: cool a mug") and text.endswith(f"Robot: 1. {TURNS[0].skill},")
    opening = form.opening("lota", "cool a mug", agent_line)
    assert form.query("lota", "cool a mug", [], agent_line) == [*opening, *form.cue("lota", 1)]
    assert chat.decode(form.cue("lota", 2, agent_line)) == f"\n{agent_line} 2."


def test_no_candidate_is_a_prefix_of_another(tiny: Tokens) -> None:
    form = PlainFormat(tiny)
    short, long = form.candidate("find a mug"), form.candidate("find a mug cabinet")
    assert long[: len(short)] != short


def test_a_start_token_can_be_named_for_a_tokenizer_without_one(chat: Tokens) -> None:
    assert make_format("default", chat).context() == []
    start = chat.convert_tokens_to_ids("<|im_end|>")
    assert make_format("default", chat, start="<|im_end|>").context() == [start]
    without, with_start = (make_format("lota", chat, start=name).context() for name in (None, "<|im_end|>"))
    assert with_start == [start, *without]
    with pytest.raises(ConfigError, match=r"prompt.start='<s>' is not a token of this model; name one, such as <\|im_"):
        make_format("default", chat, start="<s>")


def test_refusals_name_the_remedy(tiny: Tokens) -> None:
    with pytest.raises(ConfigError, match="prompt=default"):
        make_format("lota", tiny)
    with pytest.raises(ConfigError, match="default, lota"):
        make_format("haiku", tiny)


def test_a_tokenizer_without_a_newline_token_is_refused(tiny: Tokens) -> None:
    class NoNewline:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [1, 2]

    with pytest.raises(ModelError, match="newline"):
        Splicer(NoNewline())  # type: ignore[arg-type]
