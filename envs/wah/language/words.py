"""Classes that LoTA-Bench's skills may name (wah_task_planner.py of LLMTaskPlanning at 97c46cc)."""

from __future__ import annotations


def _classes(names: str) -> frozenset[str]:
    return frozenset(names.split())


PICKABLE = _classes(
    """
    alcohol apple bananas barsoap bellpepper boardgame book box breadslice bucket candle candybar carrot cellphone
    cereal chair chicken chinesefood chips chocolatesyrup clock clothespants clothespile clothesshirt coatrack
    coffeepot condimentbottle condimentshaker cookingpot crackers crayons creamybuns cupcake cutleryfork
    cutleryknife cutlets cuttingboard dishbowl dishwashingliquid facecream folder fryingpan glasses globe
    hairproduct hanger juice keyboard lime lotionbottle magazine milk milkshake mincedmeat mouse mug notes
    oventray pancake paper pear pie pillow plate plum poundcake pudding radio remotecontrol rug salad salmon
    slippers sportsball sundae teddybear toiletpaper toothbrush toothpaste towel towelrack toy wallphone
    wallpictureframe washingsponge waterglass whippedcream wine wineglass
    """
)
OPENABLE = _classes(
    """
    bathroomcabinet book bookshelf box cabinet closet clothespile coffeemaker coffeepot cookingpot curtains desk
    dishwasher door folder fridge garbagecan hairproduct kitchencabinet lotionbottle magazine microwave milk
    nightstand printer radio stove toilet toothpaste washingmachine window
    """
)
SWITCHABLE = _classes(
    """
    candle cellphone clock coffeemaker computer dishwasher faucet fridge lightswitch microwave printer radio
    remotecontrol stove toaster tv wallphone washingmachine
    """
)
# Things are put into these and onto all others: a class in both of the benchmark's lists counts as a container.
PUT_INTO = _classes(
    """
    bathroomcabinet bookshelf box cabinet closet clothespile coffeemaker dishwasher folder fridge fryingpan
    garbagecan kitchencabinet microwave nightstand printer sink stove toaster toilet washingmachine
    """
)
PUT_ONTO = _classes(
    """
    bathroomcabinet bathroomcounter bed bench boardgame bookshelf cabinet chair coffeetable cuttingboard desk
    floor fryingpan kitchencabinet kitchencounter kitchentable mousemat nightstand oventray plate radio rug sofa
    stove towelrack
    """
)
FINDABLE = PICKABLE | OPENABLE | SWITCHABLE | PUT_INTO | PUT_ONTO
