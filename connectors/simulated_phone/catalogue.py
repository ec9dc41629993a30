"""What there is on the simulated phone: apps, switches, phrasings and words. Read by layout, tasks and art.

Names, colours and glyphs never change between layouts, so a small network can learn them.
"""

from __future__ import annotations

from dataclasses import dataclass

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class App:
    """An app on the home screen; its ``name`` is also its glyph's."""

    name: str
    colour: Colour
    """RGB of its icon and title bar."""
    searchable: bool = False
    """It has a search field."""

    @property
    def label(self) -> str:
        return self.name.capitalize()


@dataclass(frozen=True, slots=True)
class Switch:
    """One setting that is on or off."""

    name: str
    """As goals say it."""
    colour: Colour

    @property
    def label(self) -> str:
        return self.name.capitalize()

    @property
    def slug(self) -> str:
        """Part of its resource id, and its glyph's name."""
        return self.name.replace(" ", "_")


APPS: dict[str, App] = {
    app.name: app
    for app in (
        App("settings", (96, 108, 124)),
        App("mail", (25, 103, 230)),
        App("maps", (22, 150, 72), searchable=True),
        App("music", (208, 24, 132), searchable=True),
        App("shop", (245, 124, 0), searchable=True),
        App("browser", (0, 168, 196), searchable=True),
        App("camera", (44, 44, 50)),
        App("clock", (112, 60, 200)),
        App("notes", (240, 190, 30)),
    )
}
SEARCHABLE: tuple[str, ...] = tuple(app.name for app in APPS.values() if app.searchable)

SWITCHES: dict[str, Switch] = {
    switch.name: switch
    for switch in (
        Switch("wifi", (20, 120, 245)),
        Switch("bluetooth", (70, 60, 200)),
        Switch("airplane mode", (250, 120, 10)),
        Switch("location", (225, 40, 50)),
        Switch("hotspot", (0, 165, 150)),
        Switch("dark mode", (40, 40, 60)),
        Switch("rotation", (40, 160, 60)),
        Switch("battery saver", (215, 180, 0)),
    )
}

OPEN_PHRASES = (
    "Open {app}",
    "Open the {app} app",
    "Launch {app}",
    "Start the {app} app",
    "Go to {app}",
    "Show me {app}",
)
TOGGLE_PHRASES = (
    "Turn {state} {switch}",
    "Turn {switch} {state}",
    "Switch {switch} {state}",
    "Set {switch} to {state}",
    "Turn {switch} {state} in Settings",
    "Go to Settings and switch {state} {switch}",
)
SEARCH_PHRASES = (
    "Search for {query} in {app}",
    "Find {query} in the {app} app",
    "Look up {query} with {app}",
    "Open {app} and search for {query}",
    "In {app} look for {query}",
    "Use {app} to find {query}",
)
MODIFIERS = (
    "green", "red", "blue", "cheap", "old", "new", "small", "big", "fresh", "quiet", "sunny", "sweet",
    "warm", "cold", "fast", "slow", "wooden", "italian", "french", "local", "famous", "modern", "simple", "silver",
)  # fmt: skip
NOUNS = (
    "tea", "shoes", "coffee", "lamp", "guitar", "bread", "museum", "river", "jacket", "garden", "piano", "bakery",
    "bicycle", "hotel", "market", "painting", "camera", "station", "violin", "table", "cafe", "bridge", "song", "park",
)  # fmt: skip
