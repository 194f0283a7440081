from __future__ import annotations

import numpy as np
import pytest

from klda import LDA
from klda.inspection.class_map import (
    ClassMap,
    classical_scaling,
    fit_middle,
    name_width,
    place_names,
)
from klda.inspection.label_set import ClassDistances


def squared_distances(points):
    return ((points[:, None] - points) ** 2).sum(axis=-1)


def test_scaling_restores_points_of_a_plane():
    points = np.random.default_rng(0).normal(size=(9, 2)) * (3, 1)
    squared = squared_distances(points)
    np.testing.assert_allclose(squared_distances(classical_scaling(squared)), squared, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_rounding_does_not_choose_the_sides_of_two_classes(seed):
    """Both are equally far out; the first is the one to the right."""
    wobble = 1 + 1e-12 * np.random.default_rng(seed).normal(size=(2, 2))
    places = classical_scaling(np.array([[0.0, 4.0], [4.0, 0.0]]) * (wobble + wobble.T) / 2)
    np.testing.assert_allclose(places, [[1, 0], [-1, 0]], atol=1e-5)


@pytest.mark.parametrize("n_classes", [5, 30, 60])
def test_rounding_does_not_move_a_map(n_classes):
    """Distances off by as much as another CPU's rounding makes those of a model in float32."""
    squared = squared_distances(np.random.default_rng(2).normal(size=(n_classes, 16)))
    wobble = 1e-6 * np.random.default_rng(0).normal(size=squared.shape)
    first, second = (
        ClassMap.of(list(range(n_classes)), np.ones(n_classes), distances).places
        for distances in (squared, squared * (1 + (wobble + wobble.T) / 2))
    )
    pixel = 2 / 560  # where a picture is 560 pixels wide, as on the page
    assert np.abs(first - second).max() < pixel


@pytest.mark.parametrize("n_classes, edge", [(1, 0), (2, 1), (3, 1), (40, 1)])
def test_a_map_has_a_place_for_every_class_and_reaches_its_edge(n_classes, edge):
    points = np.random.default_rng(1).normal(size=(n_classes, 16))
    labels = list(range(n_classes))
    found = ClassMap.of(labels, np.ones(n_classes), squared_distances(points))
    assert found.places.shape == (n_classes, 2)
    assert np.isfinite(found.places).all()
    assert np.abs(found.places).max(initial=0) == edge


def test_classes_alike_are_neighbours():
    rng = np.random.default_rng(1)
    centres = np.repeat(rng.normal(size=(4, 8)) * 5, 3, axis=0)
    X = np.repeat(centres, 30, axis=0) + rng.normal(size=(360, 8))
    found = ClassDistances.of(LDA().fit(X, np.repeat(np.arange(12), 30)).solution_).map()
    apart = squared_distances(found.places)
    np.fill_diagonal(apart, np.inf)
    assert (apart.argmin(axis=1) // 3 == np.arange(12) // 3).all()


def test_one_class_far_away_leaves_room_for_the_others():
    places = np.random.default_rng(0).uniform(-1, 1, size=(200, 2))
    places[7] = [100, -50]
    fitted = fit_middle(places)
    assert np.abs(fitted).max() == 1
    np.testing.assert_array_equal(fitted[7], [1, -1])
    others = np.delete(fitted, 7, axis=0)
    assert (np.ptp(others, axis=0) > 1.8).all()
    np.testing.assert_allclose(fit_middle(places[:5] * 3), fit_middle(places[:5]), atol=1e-12)


def test_names_cover_nothing_while_there_is_room():
    points = np.array([[30.0, 20], [40, 20], [36, 26], [95, 55]])
    widths = np.array([name_width(name) * 8 for name in ("one", "two", "three", "edge")])
    page = np.array([100.0, 60.0])
    corners, has_room = place_names(points, np.full(4, 2.0), widths, 9.0, page)
    assert has_room.all()
    assert (corners >= 0).all()
    assert (corners[:, 0] + widths <= 100).all()
    assert (corners[:, 1] + 9 <= 60).all()


def test_names_without_room_do_not_displace_others():
    """Twenty points in one place: a few names fit around it, and a later point keeps its own."""
    points = np.vstack([np.tile([50.0, 30.0], (20, 1)), [[95.0, 55.0]]])
    corners, has_room = place_names(
        points, np.full(21, 2.0), np.full(21, 30.0), 9.0, np.array([100.0, 60.0])
    )
    assert 0 < has_room[:20].sum() < 20
    assert has_room[0]
    assert has_room[20]
    boxes = corners[has_room]
    for i, one in enumerate(boxes):
        apart = np.abs(boxes[:i] - one) >= [30.0, 9.0]
        assert apart.any(axis=1).all()


@pytest.mark.parametrize("size", [12, 22])
def test_names_in_a_picture_stay_inside_and_apart(size):
    places = [(-1, 1), (1, 1), (0, 0.99), (0.03, 0.97), (-1, -1), (1, -1), (0.05, 0)]
    labels = ["a_rather_long_name_for_a_class", "出張の経費を精算したい", *"wxyz", "in the middle"]
    drawn = ClassMap(labels, np.full(7, 9), np.array(places)).draw(640, 420, size)
    assert [dot.label for dot in drawn] == labels
    boxes = []
    for dot in drawn:
        if dot.has_room:
            wide = sum(2 if ord(c) > 0x2E80 else 1 for c in dot.name) * 0.5 * size
            boxes.append(
                (dot.name_x - wide / 2, dot.name_x + wide / 2, dot.name_y - size, dot.name_y)
            )
    assert len(boxes) >= 5
    for i, (left, right, top, bottom) in enumerate(boxes):
        assert 0 <= left < right <= 640
        assert 0 <= top < bottom <= 420
        for other in boxes[:i]:
            beside = right <= other[0] or other[1] <= left
            assert beside or bottom <= other[2] or other[3] <= top


def test_the_largest_classes_come_first_and_long_names_are_cut():
    classes = ClassMap(["x" * 50, "large"], np.array([1, 9]), np.array([[-1.0, 0], [1, 0]]))
    large, small = classes.draw(100, 100, 10)
    assert (large.label, large.samples, small.label) == ("large", 9, "x" * 50)
    assert large.radius > small.radius
    assert len(small.name) == 32
    assert small.name.endswith("…")
