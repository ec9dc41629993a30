"""The parts of the Appium device that need no server: gestures, options, the UI hierarchy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from distrl.connectors.appium import gesture
from distrl.connectors.appium.hierarchy import read_hierarchy
from distrl.connectors.appium.option import AppiumOptions
from distrl.core.errors import DeviceError

XML = """<?xml version='1.0' encoding='UTF-8' standalone='yes' ?>
<hierarchy index="0" class="hierarchy" rotation="0" width="1000" height="2000">
  <android.widget.FrameLayout index="0" class="android.widget.FrameLayout" text="" resource-id="" bounds="[0,0][1000,2000]">
    <android.widget.Switch class="android.widget.Switch" text="Wi-Fi &amp; more" resource-id="com.example:id/wifi"
      checked="true" focused="false" bounds="[100,200][500,300]" />
    <android.widget.ImageView class="android.widget.ImageView" text="" content-desc="Back" resource-id=""
      checked="false" focused="true" bounds="[-100,0][0,50]" />
  </android.widget.FrameLayout>
</hierarchy>"""


@pytest.mark.parametrize(
    ("point", "pixel"),
    [((0.0, 0.0), (0, 0)), ((1.0, 1.0), (159, 283)), ((0.5, 0.25), (80, 71)), ((0.9999, 0.0), (159, 0))],
)
def test_a_fraction_becomes_a_pixel_on_the_screen(point: tuple[float, float], pixel: tuple[int, int]) -> None:
    assert gesture.pixel(point, (160, 284)) == pixel


def test_a_tap_takes_no_time() -> None:
    tap = gesture.tap((3, 4))
    assert [action["type"] for action in tap["actions"]] == ["pointerMove", "pointerDown", "pointerUp"]
    assert {action.get("duration", 0) for action in tap["actions"]} == {0}
    assert tap["id"] == gesture.swipe((0, 0), (1, 1), 100)["id"]
    assert tap["parameters"] == {"pointerType": "touch"}


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("Zoë 日本 😀", "Zoë 日本 😀"),
        ("e\u0301", "e\u0301"),
        ("a\ue007b\ud800c\x00\nd\x7f", "abcd"),
        ("\ue007", ""),
    ],
)
def test_text_holds_no_special_keys(text: str, typed: str) -> None:
    assert gesture.typable(text) == typed


def test_each_character_is_pressed_and_released() -> None:
    assert [(key["type"], key["value"]) for key in gesture.keys("a😀")["actions"]] == [
        ("keyDown", "a"),
        ("keyUp", "a"),
        ("keyDown", "😀"),
        ("keyUp", "😀"),
    ]


def test_a_hierarchy_becomes_a_tree_of_the_contract() -> None:
    root = json.loads(read_hierarchy(XML, (1000, 2000)))
    assert root["bounds"] == [0.0, 0.0, 1.0, 1.0]
    (frame,) = root["children"]
    switch, back = frame["children"]
    assert switch == {
        "resource_id": "com.example:id/wifi",
        "class_name": "android.widget.Switch",
        "text": "Wi-Fi & more",
        "checked": True,
        "focused": False,
        "bounds": [0.1, 0.1, 0.5, 0.15],
    }
    assert (back["text"], back["focused"], back["bounds"]) == ("Back", True, [-0.1, 0.0, 0.0, 0.025])


@pytest.mark.parametrize("xml", ["", "<hierarchy>", "<html></html>", "not found"])
def test_anything_else_is_a_device_error(xml: str) -> None:
    with pytest.raises(DeviceError, match="UI hierarchy"):
        read_hierarchy(xml, (100, 100))


def test_a_step_must_have_time_to_wait() -> None:
    with pytest.raises(ValidationError, match="step_seconds must exceed"):
        AppiumOptions(step_seconds=1.0, wait_seconds=1.0)


def test_registering_needs_no_client() -> None:
    modules = (
        "appium.option",
        "appium.gesture",
        "appium.hierarchy",
        "appium.process",
        "miniwob.option",
        "miniwob.task",
        "plugin",
    )
    imports = "; ".join(f"import distrl.connectors.{module}" for module in modules)
    check = f"{imports}; import sys; print(sorted({{'appium', 'selenium', 'miniwob'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_server_is_named_without_its_user() -> None:
    from distrl.connectors.appium.session import shown

    assert shown("https://me:T0PSECRET@farm.example:443/wd/hub") == "https://farm.example:443/wd/hub"
    assert shown("http://127.0.0.1:4723") == "http://127.0.0.1:4723"
