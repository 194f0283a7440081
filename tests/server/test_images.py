"""The service on an image model."""

# ruff: noqa: E402

from __future__ import annotations

import base64
import html
import io
import re
import zipfile

import numpy as np
import pytest

pillow = pytest.importorskip("PIL.Image")

from klda import KLDA
from klda.encoders.images import open_image
from klda.learner import Learner
from klda.server.client import Client
from klda.server.errors import ServerError
from klda.server.inputs import image_files, read_images

from .conftest import listening, serving, wait_for

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
        connect = html.unescape(client.get("/connect").text)
        assert 'client.learn(["photo.jpg"], ["YOUR_CLASS"])' in connect


@pytest.mark.parametrize(
    "bad", ["not base64!", "äöüß", base64.b64encode(b"no image").decode(), "AAAA"]
)
def test_what_is_no_image_is_refused(folder, bad):
    with serving(folder) as client:
        answer = client.post("/v1/predict", json={"images": [encoded("red", 1), bad]})
        assert answer.status_code == 422
        assert "images[1]" in answer.json()["error"]["message"]


def test_images_of_too_many_pixels_together_are_refused(monkeypatch):
    monkeypatch.setattr("klda.server.inputs.MAX_PIXELS_TOGETHER", 3 * 48 * 48)
    images = [encoded("red", i) for i in range(4)]
    assert len(read_images(images[:3])) == 3
    with pytest.raises(ServerError, match=r"images\[3\]"):
        read_images(images)


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


def zipped(**folders):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for folder, files in folders.items():
            for i, file in enumerate(files):
                archive.writestr(f"all/{folder}/{i}.png", file)
    return buffer.getvalue()


def test_an_archive_of_images_is_looked_at_and_taught(folder):
    blue = [base64.b64decode(encoded("blue", i)) for i in range(3)]
    red = [base64.b64decode(encoded("red", i)) for i in range(3)]
    archive = zipped(sky=blue, red=[*red, b"no image"], __MACOSX=[b"x"])
    with serving(folder) as client:
        sent = client.post("/page/import", files={"file": ("photos.zip", archive)})
        where = sent.headers["HX-Redirect"]
        shown = client.get(where).text
        assert "6 images, 2 classes" in shown
        assert "1 image can&#39;t be used" in shown or "1 image can't be used" in shown
        small = client.get(f"/page{where}/image/0")
        assert small.headers["content-type"] == "image/jpeg"
        assert client.get(f"/page{where}/image/6").status_code == 404
        wait_for(lambda: "Looking for" not in client.get(f"/page{where}/check").text, 60)
        client.post(f"/page{where}/teach")
        wait_for(lambda: "Teaching" not in client.get(f"/page{where}").text, 60)
        assert "Taught 6 images, 1 new class" in client.get(f"/page{where}").text
        # Images without folders need a class, which the class's own screen fills in.
        assert "/import?label=sky" in client.get("/page/class?label=sky").text
        assert 'value="sky"' in client.get("/import?label=sky").text
        files = [("file", (f"{i}.png", file)) for i, file in enumerate(blue)]
        refused = client.post("/page/import", files=files)
        assert "Name the class of these images" in refused.text
        named = client.post("/page/import", files=files, data={"label": "sky"})
        assert "3 images, 1 class" in client.get(named.headers["HX-Redirect"]).text


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr("klda.server.inputs.MAX_UNPACKED", 100)
    with pytest.raises(ServerError, match="holds too much"):
        image_files([("a.zip", zipped(red=[bytes(101)]))])


def test_images_are_sorted_in_the_inbox(folder):
    with serving(folder) as client:
        files = [("file", (f"{i}.png", base64.b64decode(encoded("red", i)))) for i in range(5, 7)]
        assert client.post("/page/inbox/add", files=files).headers["HX-Redirect"] == "/inbox"
        wait_for(lambda: "Reading" not in client.get("/page/inbox").text, 60)
        shown = client.get("/inbox").text
        card = shown.partition('id="sort"')[2]  # the header's undo has a number, too
        number = re.search(r'name="number" value="([0-9]+)"', card)[1]
        image = client.get(f"/page/inbox/image/{number}")
        assert image.headers["content-type"] == "image/jpeg"
        taught = client.post("/page/inbox/teach", data={"number": number, "chosen": "red"})
        assert "1 of 2 sorted" in taught.text
        client.post("/page/inbox/remove")
        assert client.get(f"/page/inbox/image/{number}").status_code == 404
