"""Images have one device, which every Triton process finds."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from triton_sam.backend.workers.links import Links
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.routing import Router, home_of

KEYS = [f"{number:040x}" for number in range(300)]


class FakeLink:
    """A worker's list of places without a process; answers at once."""

    def __init__(self, index: int) -> None:
        self.ready = True
        self.load = 0
        self.cached: set[str] = set()
        self.lists = Links(WorkerOptions(1, "sam2", "1", "sam2:tiny", "", index, "cpu"))

    def ask(self, header: dict[str, Any], done: Any) -> None:
        if not self.ready:
            done(None)
        elif header["is"] == "place":
            done(self.lists.place(header["key"], header["wanted"], header["ready"]))
        else:
            done(header["name"] in self.cached)


def find(router: Router, key: str, *, new: bool = False) -> int | None:
    found: list[int | None] = []
    router.find(key, new=new, then=found.append)
    assert len(found) == 1
    return found[0]


@given(st.integers(1, 8), st.integers(0, 299))
def test_a_lost_device_moves_only_its_own_keys(devices: int, number: int) -> None:
    home = home_of(KEYS[number], range(devices))
    for lost in range(devices):
        others = [device for device in range(devices) if device != lost]
        if others and lost != home:
            assert home_of(KEYS[number], others) == home


def test_homes_are_spread() -> None:
    counts = Counter(home_of(key, range(4)) for key in KEYS)
    assert min(counts.values()) > len(KEYS) / 8


def test_two_processes_send_a_new_image_to_the_same_device() -> None:
    links: list[Any] = [FakeLink(index) for index in range(3)]
    one, other = Router(links), Router(links)
    links[0].load = 5
    for number, key in enumerate(KEYS):
        place = find(one, key, new=True)
        assert place in (1, 2), "the devices with less to do"
        links[1].load, links[2].load = number % 2, (number + 1) % 2
        assert find(other, key, new=True) == place
        assert find(other, key) == place
    assert find(one, "f" * 40) is None, "nobody has it"


def test_images_of_a_lost_device_go_elsewhere_and_others_stay() -> None:
    links: list[Any] = [FakeLink(index) for index in range(3)]
    router = Router(links)
    places = {}
    for number, key in enumerate(KEYS):
        for index, link in enumerate(links):
            link.load = (index + number) % 3
        places[key] = find(router, key, new=True)
        links[places[key] or 0].cached.add(key)
    assert set(places.values()) == {0, 1, 2}
    links[1].ready = False
    for key, place in places.items():
        assert find(router, key) == (None if place == 1 else place)
        again = find(router, key, new=True)
        assert again == place if place != 1 else again in (0, 2)


def test_without_a_device_nothing_is_found() -> None:
    links: list[Any] = [FakeLink(0), FakeLink(1)]
    for link in links:
        link.ready = False
    assert find(Router(links), KEYS[0], new=True) is None


def test_an_image_is_found_after_the_list_of_its_home_is_lost() -> None:
    links: list[Any] = [FakeLink(index) for index in range(2)]
    key = next(key for key in KEYS if home_of(key, [0, 1]) == 0)
    links[0].load = 1
    assert find(Router(links), key, new=True) == 1
    links[1].cached.add(key)
    links[0] = FakeLink(0)  # a new worker knows nothing
    assert find(Router(links), key) == 1


def test_an_image_that_moved_while_its_device_was_lost_is_found_where_it_is() -> None:
    """A process that knew the old place asks again, and does not send its clicks to an empty cache."""
    links: list[Any] = [FakeLink(index) for index in range(3)]
    one, other = Router(links), Router(links)
    key = next(key for key in KEYS if home_of(key, range(3)) == 0)
    links[0].load = links[2].load = 1
    assert find(one, key, new=True) == find(other, key) == 1
    links[1].ready = False
    for router in (one, other):
        router.forget(1)
    links[2].load = 0
    assert find(other, key, new=True) == 2
    links[1].ready = True
    assert find(one, key) == find(other, key) == 2
