"""Sentence patterns for the six task types.

Slots (placeholders): ``{things}`` are the objects ("an apple and two cupcakes"). ``{items}`` are the objects as a list
after a colon, ``{first}`` is the first object, ``{rest}`` the others. Only goals with several objects use these three.
``{them}`` ("it") and ``{are}`` ("is") agree with the number of objects. ``{place}`` is the destination ("the fridge"),
``{on}`` "in the fridge", ``{onto}`` "into the fridge", ``{to}`` "to the fridge". ``{book}`` is held, ``{seat}`` is the
seat. A word in brackets, such as ``[put]``, is replaced by one of its synonyms in `WORDS`; synonyms may contain slots.
"""

from __future__ import annotations

WORDS: dict[str, tuple[str, ...]] = {
    "put": ("put", "put", "place", "set"), "Put": ("Put", "Put", "Place", "Set"),
    "putting": ("putting", "placing", "setting"), "move": ("bring", "move", "take", "carry", "transfer", "deliver"),
    "Move": ("Bring", "Take", "Move", "Carry"), "get": ("get", "grab", "pick up", "take", "fetch", "collect", "gather"),
    "find": ("find", "look for", "locate", "search for"), "then": ("then", "and then", "and", "and after that"),
    "items": ("items", "things", "objects"),
    "hungry": ("hungry", "a bit hungry", "peckish", "getting hungry", "starving"),
    "snack": ("a snack", "some snacks", "an afternoon snack", "a light snack", "a little snack"),
    "food": ("a meal", "some food", "lunch", "dinner", "breakfast", "something to eat"),
    "meal": ("dinner", "lunch", "a meal", "supper", "breakfast", "the evening meal"),
    "prepare": ("prepare", "make", "fix", "put together"), "setting": ("set", "set up", "lay", "prepare"),
    "load": ("load", "fill", "stack"),
    "tidy": ("tidy up", "clear the dishes away", "put the dirty dishes away", "tidy the kitchen"),
    "wash": ("wash", "clean", "do"),
    "dishes": ("do the dishes", "wash the dishes", "clean up", "wash up", "clean the dishes"),
    "run": ("turn it on", "turn it on", "start it", "run it", "switch it on", "turn on {place}", "start {place}",
        "run {place}", "switch on {place}", "turn {place} on"),
    "store": ("store", "keep", "stow"), "chill": ("chill", "cool", "keep", "refrigerate"),
    "away": ("put the groceries away", "put away the groceries", "unpack the shopping", "tidy up the food"),
    "sit": ("sit", "sit down", "have a seat", "take a seat"),
    "relax": ("relax", "get comfortable", "make yourself comfortable", "settle down"),
    "take": ("take", "get", "grab", "pick up", "fetch", "find"),
}  # fmt: skip

# Imperatives for every task with objects and a destination.
PLACING: tuple[str, ...] = (
    "[put] {things} {onto}", "[put] {things} {onto}", "[move] {things} {to}", "[move] {things} {to}",
    "[move] {things} over {to}", "{on}, [put] {things}", "[get] {things} and [put] {them} {onto}",
    "[get] {things}, [then] [put] {them} {onto}", "[get] {things} and [move] {them} {to}",
    "go [get] {things} and [put] {them} {onto}", "[find] {things} and [put] {them} {onto}",
    "[find] {things}, [then] [move] {them} {to}", "search the house for {things} and [put] {them} {onto}",
    "gather {things} {on}", "collect {things} and leave {them} {on}", "leave {things} {on}",
    "make sure {things} {are} {on}", "see to it that there {are} {things} {on}",
    "[put] {first} {onto}, [then] [put] {rest} there too", "[put] {first} {onto} together with {rest}",
    "[get] {first}, then {rest}, and [put] everything {onto}",
)  # fmt: skip
LISTING: tuple[str, ...] = (
    "[put] the following [items] {onto}: {items}", "[put] these [items] {onto}: {items}",
    "[get] the following [items] and [put] them {onto}: {items}", "[move] the following {to}: {items}",
    "[put] {onto} the following: {items}",
)  # fmt: skip
# Statements for every task with objects and a destination.
WISHES: tuple[str, ...] = (
    "I want {things} {on}", "I need {things} {on}", "I would like {things} {on}", "we need {things} {on}",
    "there should be {things} {on}", "{on}, there should be {things}", "{things} should be {on}",
    "{things} should go {onto}", "{things}: [put] {them} {onto}", "[items] to [put] {onto}: {items}",
    "[putting] {things} {onto}", "[put] {first} {onto}. [Put] {rest} there as well",
    "[move] {first} {to}. [Move] {rest} there too",
)  # fmt: skip

_SNACK = (
    "prepare [snack]: [put] {things} {onto}", "prepare [snack] with {things} {on}",
    "[prepare] [snack] by [putting] {things} {on}", "[prepare] [snack] {on} with {things}",
    "[prepare] [snack] for me: [move] {things} {to}", "[prepare] [snack] {on}: {items}",
    "serve {things} {on} as [snack]", "serve {things} {on}", "set out {things} {on} for [snack]",
    "lay out some snacks {on}: {items}", "[put] some snacks {onto}, namely {things}",
    "[get] {things} for [snack] and [put] {them} {onto}",
)  # fmt: skip
_SNACK_WISHES = (
    "I am [hungry], [move] {things} {to}", "I'm [hungry]. [Put] {things} {onto}",
    "I feel like [snack]. [Move] {things} {to}", "snack time: [put] {things} {onto}",
    "I want to snack on {things}, so [put] {them} {onto}", "for [snack], [put] {things} {onto}",
    "can I have {things} {on} for [snack]?", "some friends are coming over, [move] {things} {to}",
)  # fmt: skip
_FOOD = (
    "prepare [food]: [put] {things} {onto}", "prepare [food] with {things} {on}",
    "[prepare] [food] by [putting] {things} {on}", "[prepare] [food] {on} with {things}",
    "[prepare] [food] for me: [move] {things} {to}", "[prepare] [food] {on}: {items}", "serve {things} {on}",
    "serve {things} {on} for [meal]", "set out {things} {on} for [meal]", "get the food ready: [put] {things} {onto}",
    "[put] some food {onto}, namely {things}", "[get] {things} for [meal] and [put] {them} {onto}",
)  # fmt: skip
_FOOD_WISHES = (
    "I am [hungry], [move] {things} {to}", "I'm [hungry]. [Put] {things} {onto}",
    "it is time for [meal]. [Move] {things} {to}", "I want to eat, so [put] {things} {onto}",
    "for [meal], [put] {things} {onto}", "can I have {things} {on} for [meal]?",
    "we will eat soon, [move] {things} {to}", "for [meal] I would like {things} {on}",
)  # fmt: skip
_TABLE = (
    "[setting] {place} with {things}", "[setting] {place} with {things}", "[setting] {place} for [meal] with {things}",
    "[setting] {place} for [meal]: {items}", "[setting] {place} for [meal] by [putting] {things} on it",
    "[setting] {place} using {things}", "[setting] {place} with the following [items]: {items}",
    "get {place} ready for [meal] with {things}", "get {place} ready for the guests: [put] {things} on it",
    "arrange {things} {on}", "arrange {things} {on} for [meal]", "lay out {things} {on}",
    "[put] {things} {onto} for [meal]",
)  # fmt: skip
_TABLE_WISHES = (
    "we are about to eat, [setting] {place} with {things}", "it is almost time for [meal]. [Put] {things} {onto}",
    "for [meal], [put] {things} {onto}", "for [meal], {place} should have {things} on it",
    "{place} should be set with {things}", "I want {place} set with {things}", "{place} needs {things}",
    "guests are coming, so [put] {things} {onto}",
)  # fmt: skip
_LOAD = (
    "[load] {place} with {things}", "[load] {place} with {things}", "load {things} into {place}", "stack {things} {on}",
    "load {place}: {items}", "load the following [items] into {place}: {items}",
    "[load] {place} with the following: {items}", "[tidy]: [put] {things} {onto}", "[tidy] and [put] {things} {onto}",
    "[tidy] by [putting] {things} {on}", "[get] {things} and load {them} into {place}",
    "[find] {things}, [then] load {them} into {place}", "[put] the dirty dishes {onto}: {items}",
)  # fmt: skip
_LOAD_WISHES = (
    "{place} should be loaded with {things}", "{things} must go into {place}", "{things}: load {them} into {place}",
    "we are done eating. [Put] {things} {onto}", "we have finished [meal], so [put] {things} {onto}",
)  # fmt: skip
# Commands that [run] can follow: not those that end with a list.
_RUNNABLE = tuple(form for form in PLACING + _LOAD if "{items}" not in form)
_RUN = (
    "[load] {place} with {things} and [run]", "load {things} into {place} and [run]", "[put] {things} {onto} and [run]",
    "[wash] the dishes in {place}: {items}", "wash {things} in {place}", "wash {things} in {place}",
    "clean {things} in {place}", "use {place} to wash {things}", "use {place} to clean {things}",
    "run {place} with {things} in it", "run {place} with {things} inside",
    "[dishes]: [put] {things} {onto}, [then] [run]", "[dishes]: [load] {place} with {things} and [run]",
    "[dishes]: load {things} into {place} and [run]", "[dishes] using {place}: {items}",
    "wash the following [items] in {place}: {items}", "[put] {things} {onto} to wash {them}",
    "[put] {things} {onto} to be washed", "[get] {things}, load {them} into {place} and [run]",
    "[get] the dirty dishes, {things}, [put] them {onto} and [run]", "turn on {place} after [putting] {things} inside",
    "start {place} after [putting] {things} in it", "get {things} washed in {place}",
)  # fmt: skip
_RUN_WISHES = (
    "{things} must be washed in {place}", "{things} should be washed in {place}", "I want {things} washed in {place}",
    "I need {things} cleaned in {place}", "{things} should be {on}, and {place} should be running",
    "{things}: [put] {them} {onto} and [run]", "[put] {things} {onto}. Then [run]",
    "we are done eating. Load {things} into {place} and [run]", "after [meal], wash {things} in {place}",
)  # fmt: skip
_STORE = (
    "[store] {things} {on}", "[store] {things} {on}", "put {things} away {on}", "[away]: [put] {things} {onto}",
    "[away] and [put] {things} {onto}", "[chill] {things} {on}", "chill {things} by [putting] {them} {on}",
    "keep {things} cold {on}", "keep {things} fresh {on}", "stock {place} with {things}", "fill {place} with {things}",
    "restock {place} with {things}", "[away] {on}: {items}", "[store] the following [items] {on}: {items}",
    "[get] {things} and store {them} {on}",
)  # fmt: skip
_STORE_WISHES = (
    "{things} must be stored {on}", "{things} should be kept cold {on}", "I want {things} cold, so [put] {them} {onto}",
    "I just came back from shopping, [put] {things} {onto}", "the groceries are here. [Put] {things} {onto}",
    "before the food goes bad, [put] {things} {onto}",
)  # fmt: skip
_READ = (
    "sit on {seat} and read {book}", "[sit] on {seat} and read {book}", "[sit] on {seat} with {book}",
    "[sit] on {seat} with {book} in your hands", "[sit] on {seat} while holding {book}",
    "[sit] on {seat}, holding {book}", "[take] {book} and [sit] on {seat}", "[take] {book}, then [sit] on {seat}",
    "[take] {book} and sit on {seat} to read", "[take] {book} and read it on {seat}",
    "take {book} to {seat}, [sit] and read", "go [take] {book} and [sit] on {seat}",
    "find {book} to read and [sit] on {seat}", "read {book} on {seat}", "read {book} while sitting on {seat}",
    "hold {book} and sit on {seat}", "hold {book} while sitting on {seat}", "be seated on {seat} with {book} in hand",
    "bring {book} to {seat} and [sit]", "[relax] on {seat} with {book}", "[relax] on {seat} and read {book}",
    "enjoy {book} on {seat}", "spend some time reading {book} on {seat}", "pick out {book} and [relax] on {seat}",
    "go to {seat} with {book} and [sit]", "prepare to read: [take] {book} and [sit] on {seat}",
)  # fmt: skip
_READ_WISHES = (
    "it is reading time, so [take] {book} and [sit] on {seat}", "you should be sitting on {seat} with {book}",
    "reading {book} on {seat}", "sitting on {seat} with {book}",
)  # fmt: skip
# Patterns for reading with snacks: %s is a pattern of _READ.
_SNACK_AND_READ = (
    "[put] {things} {onto}, [then] %s", "[put] {things} {onto} and %s", "[move] {things} {to}, [then] %s",
    "[get] {things}, [put] {them} {onto} and %s", "%s after [putting] {things} {on}",
    "%s, but first [put] {things} {onto}", "%s, with {things} {on}",
)  # fmt: skip
_SNACK_AND_READ_WISHES = (
    "[put] {things} {onto}. Then %s", "%s. Before that, [put] {things} {onto}",
    "I want to snack while I read, so [put] {things} {onto} and %s", "there should be {things} {on} when you %s",
)  # fmt: skip

COMMANDS: dict[str, tuple[str, ...]] = {
    "prepare_snack": PLACING + LISTING + _SNACK * 2, "prepare_food": PLACING + LISTING + _FOOD * 2,
    "setup_table": PLACING + LISTING + _TABLE * 2, "put_dishwasher": PLACING + LISTING + _LOAD * 2,
    "run_dishwasher": tuple(f"{form}, [then] [run]" for form in _RUNNABLE) + _RUN * 2,
    "put_fridge": PLACING + LISTING + _STORE * 2, "read_book": _READ,
    "read_and_snack": tuple(join % read for read in _READ for join in _SNACK_AND_READ),
}  # fmt: skip
STATEMENTS: dict[str, tuple[str, ...]] = {
    "prepare_snack": WISHES + _SNACK_WISHES, "prepare_food": WISHES + _FOOD_WISHES,
    "setup_table": WISHES + _TABLE_WISHES, "put_dishwasher": WISHES + _LOAD_WISHES, "run_dishwasher": _RUN_WISHES,
    "put_fridge": WISHES + _STORE_WISHES, "read_book": _READ_WISHES,
    "read_and_snack": tuple(join % read for read in _READ for join in _SNACK_AND_READ_WISHES),
}  # fmt: skip
# Phrases around a command. LATE_WRAPPERS add words after the command; they are not used for a command with a colon.
WRAPPERS: tuple[str, ...] = (
    "{}", "{}", "{}", "{}", "please {}", "please {}", "could you {}?", "could you please {}?", "can you {}?",
    "would you {}?", "would you please {}?", "I would like you to {}", "I'd like you to {}", "I want you to {}",
    "I need you to {}", "you should {}", "robot, {}", "hey robot, {}", "hi robot, please {}", "your task is to {}",
    "task: {}", "help me {}", "go ahead and {}", "it would be great if you could {}", "kindly {}", "now {}", "let's {}",
    "we need to {}", "try to {}", "to {}",
)  # fmt: skip
LATE_WRAPPERS: tuple[str, ...] = ("{}, please", "{} please", "{}, thanks", "{}, will you?")

# Styles of lists in a sentence, the usual one first. Determiners: "mixed" is drawn for each thing, "once" is an article
# for the first thing only. Joints: the text between things, and the text before the last thing.
DETERMINERS: tuple[str, ...] = ("a", "the", "the", "one", "1", "mixed", "once", "bare")
JOINTS: tuple[tuple[str, str], ...] = (
    (", ", " and "), (", ", " and "), (", ", " along with "), (", ", " as well as "), (", ", " together with "),
    (", ", " plus "), (", ", " & "),
)  # fmt: skip
LONG_JOINTS: tuple[tuple[str, str], ...] = (  # for lists of three or more things
    (", ", " and "), (", ", ", and "), (", ", ", and "), (", ", ", and "), (", ", ", along with "),
    (", ", ", as well as "), (", ", ", and also "), (", ", ", plus "), (", ", ", "), (" and ", " and "),
)  # fmt: skip
# Styles of lists after a colon: the style "x" gives "2x plate", "times" gives "plate x2".
ITEM_STYLES: tuple[str, ...] = ("bare", "a", "one", "1", "the", "x", "times")
ITEM_JOINTS: tuple[tuple[str, str], ...] = ((", ", ", "), (", ", " and "), ("; ", "; "), (" - ", " - "))
NUMBERS: tuple[str, ...] = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
