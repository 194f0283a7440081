"""The service on an image model."""

# ruff: noqa: E402

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest

pillow = pytest.importorskip("PIL.Image")

from klda import KLDA
from klda.encoders.images import open_image
from klda.learner import Learner
from klda.server.client import Client
from klda.server.errors import ServerError
from klda.server.inputs import read_images

from .conftest import listening, serving

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (20, 40, 200)}


def picture(colour, seed):
    noise = np.random.default_rng(seed).integers(-20, 20, (48, 48, 3))
    return np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8)


def encoded(colour, seed, kind="PNG"):
    buffer = io.BytesIO()
    pillow.fromarray(picture(colour, seed)).save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_dinov2):
    folder = tmp_path_factory.mktemp("images") / "model"
    classifier = KLDA(n_components=100, gamma=0.01, random_state=0)
    learner = Learner(str(tiny_dinov2), classifier=classifier, device="cpu")
    pairs = [(colour, i) for colour in ("red", "green") for i in range(4)]
    learner.learn([picture(*pair) for pair in pairs], [colour for colour, _ in pairs])
    learner.save(folder)
    return folder


def test_images_are_learned_asked_and_shown(folder):
    with serving(folder) as client:
        body = {"images": [encoded("blue", i) for i in range(3)], "labels": ["blue"] * 3}
        assert client.post("/v1/learn", json=body).json()["new_classes"] == ["blue"]
        images = [encoded(colour, 99, "JPEG") for colour in COLOURS]
        answers = client.post("/v1/predict", json={"images": images}).json()["predictions"]
        assert [answer["label"] for answer in answers] == list(COLOURS)
        assert client.post("/v1/explain", json={"image": images[0]}).json()["label"] == "red"
        file = {"file": ("a.png", base64.b64decode(encoded("green", 7)), "image/png")}
        shown = client.post("/page/ask", files=file).text
        assert re.search(r"verdict.*<strong[^>]*>green", shown)
        assert 'type="file"' in client.get("/").text


@pytest.mark.parametrize("bad", ["not base64!", base64.b64encode(b"no image").decode(), "AAAA"])
def test_what_is_no_image_is_refused(folder, bad):
    with serving(folder) as client:
        answer = client.post("/v1/predict", json={"images": [encoded("red", 1), bad]})
        assert answer.status_code == 422
        assert "images[1]" in answer.json()["error"]["message"]


def test_images_of_too_many_pixels_together_are_refused():
    images, most = [encoded("red", i) for i in range(4)], 3 * 48 * 48
    assert len(read_images(images[:3], most)) == 3
    with pytest.raises(ServerError, match=r"images\[3\]"):
        read_images(images, most)


def test_formats_that_nobody_needs_are_not_read(folder):
    with serving(folder) as client:
        answer = client.post("/v1/predict", json={"images": [encoded("red", 1, "TIFF")]})
        assert answer.status_code == 422
        assert "PNG" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_a_large_image_becomes_small_and_stays_upright(kind):
    image = pillow.new("RGB", (5000, 2500), COLOURS["green"])
    image.paste(COLOURS["red"], (0, 0, 2500, 2500))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by a quarter: the left side is the top
    buffer = io.BytesIO()
    options = {} if kind == "GIF" else {"exif": exif}
    image.save(buffer, kind, **options)
    (file,) = read_images([base64.b64encode(buffer.getvalue()).decode()])
    assert len(file) < 100_000
    small = open_image(file, 0)
    if options:
        assert small.size == (1024, 2048)
        top, bottom = small.getpixel((512, 500)), small.getpixel((512, 1500))
    else:
        assert small.size == (2048, 1024)
        top, bottom = small.getpixel((500, 512)), small.getpixel((1500, 512))
    assert top[0] > 150 > top[1]
    assert bottom[1] > 150 > bottom[0]


def test_the_client_sends_arrays_and_files(folder, tmp_path):
    path = tmp_path / "green.png"
    pillow.fromarray(picture("green", 5)).save(path)
    with listening(folder) as address, Client(address) as client:
        given = [picture("red", 5), path, path.read_bytes()]
        assert client.predict(given).tolist() == ["red", "green", "green"]
