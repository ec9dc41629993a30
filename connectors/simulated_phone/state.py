"""What the phone does when it is used: the state behind the screen, without a pixel. Called by the device.

Whatever makes no sense on the present screen changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distrl.connectors.simulated_phone.catalogue import APPS
from distrl.connectors.simulated_phone.layout import Layout
from distrl.core.contracts.action import Key

TEXT_LIMIT = 200
"""Characters that a search field holds; what is typed beyond is cut off."""


@dataclass(slots=True)
class PhoneState:
    """The phone between two actions."""

    layout: Layout
    app: str = ""
    """The app in front; empty on the home screen."""
    focused: bool = False
    """The search field has the cursor, the keyboard is open."""
    text: str = ""
    """In the search field."""
    query: str = ""
    """What was searched for; not empty while results are shown."""
    switches: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.switches = dict(self.layout.switches)

    def tap(self, target: str) -> None:
        """``target`` is the widget's ``target``: a verb and its object."""
        verb, _, thing = target.partition(":")
        match verb:
            case "open":
                self._go(thing)
            case "switch":
                self.switches[thing] = not self.switches[thing]
            case "focus":
                self.focused = True
            case "submit":
                self.submit()
            case "back":
                self.press("back")
            case "home":
                self.press("home")

    def press(self, key: Key) -> None:
        match key:
            case "home":
                self._go("")
            case "enter":
                if self.focused:
                    self.submit()
            case "back" if self.focused:
                self.focused = False
            case "back" if self.query:
                self.query = ""
            case "back":
                self._go("")

    def type(self, text: str) -> None:
        """Replace what is in the search field, if it has the cursor."""
        if self.focused:
            self.text = " ".join(text.split())[:TEXT_LIMIT]

    def submit(self) -> None:
        """Search for what is in the field; an empty one searches for nothing."""
        if self.text and not self.query:
            self.query = self.text
            self.focused = False

    def reached(self, parameters: Mapping[str, str]) -> bool:
        """Whether the goal that a task's parameters describe is reached; ``KeyError`` if they name nothing of this phone's."""
        if "switch" in parameters:
            return self.switches[parameters["switch"]] == (parameters["state"] == "on")
        app = APPS[parameters["app"]].name
        return self.app == app and ("query" not in parameters or self.query == parameters["query"])

    @property
    def has_field(self) -> bool:
        return bool(self.app) and APPS[self.app].searchable and not self.query

    def _go(self, app: str) -> None:
        self.app, self.focused, self.text, self.query = app, False, "", ""
